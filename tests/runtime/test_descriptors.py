"""A process knows how many connections it has descriptors for, and when few are left."""

from __future__ import annotations

import resource

import pytest

from wsmux.runtime import descriptors


def test_connections_leave_descriptors_to_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    assert descriptors.most_connections() == 192
    assert descriptors.descriptors_left(895)
    assert not descriptors.descriptors_left(896)


def test_a_process_of_few_descriptors_takes_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (3, 3))
    assert descriptors.most_connections() == 1


def test_without_a_limit_there_are_always_some_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert descriptors.most_connections() > 2**32
    assert descriptors.descriptors_left(2**31 - 1)
