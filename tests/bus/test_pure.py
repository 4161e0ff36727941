"""What decides on messages knows no threads, sockets, clocks or chance."""

from __future__ import annotations

from pathlib import Path

import pytest

import wsmux.bus

from ..pure import PURE_BUS, impure_imports

ROOM = Path(wsmux.bus.__file__).parent


@pytest.mark.parametrize("module", PURE_BUS)
def test_a_pure_module_imports_nothing_impure(module: str) -> None:
    assert not impure_imports(ROOM / f"{module}.py")
