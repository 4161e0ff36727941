"""What lies below the calls knows no threads, sockets, clocks or chance."""

from __future__ import annotations

from pathlib import Path

import pytest

import wsmux.rpc

from ..pure import PURE_RPC, impure_imports

ROOM = Path(wsmux.rpc.__file__).parent


@pytest.mark.parametrize("module", PURE_RPC)
def test_a_pure_module_imports_nothing_impure(module: str) -> None:
    assert not impure_imports(ROOM / f"{module}.py")
