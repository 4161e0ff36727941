"""What decides and parses knows no threads, sockets and clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

import wsmux.tunnel

from ..pure import PURE_TUNNEL, impure_imports


@pytest.mark.parametrize("module", PURE_TUNNEL)
def test_a_pure_module_imports_nothing_impure(module: str) -> None:
    assert wsmux.tunnel.__file__ is not None
    assert impure_imports(Path(wsmux.tunnel.__file__).parent / f"{module}.py") == set()


def test_the_package_offers_what_it_promises() -> None:
    assert set(wsmux.tunnel.__all__) == {
        "AllowList",
        "Forward",
        "Forwarder",
        "RemoteProcess",
        "Tcp",
        "TunnelError",
        "TunnelServer",
        "Unix",
        "parse_forward",
        "parse_place",
    }
    assert all(hasattr(wsmux.tunnel, name) for name in wsmux.tunnel.__all__)
