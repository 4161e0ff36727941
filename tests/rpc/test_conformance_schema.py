"""The table of upstream tests names tests that exist."""

from __future__ import annotations

import importlib

import pytest

from .conformance_schema import OURS


@pytest.mark.parametrize("ours", sorted(set(OURS.values())))
def test_the_test_named_for_an_upstream_one_exists(ours: str) -> None:
    module, _, name = ours.partition("::")
    assert callable(getattr(importlib.import_module(f"tests.rpc.{module}"), name))
