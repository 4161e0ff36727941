"""What lies below the calls knows no threads, sockets, clocks or chance."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import wsmux.rpc

from ..pure import PURE_RPC

ROOM = Path(wsmux.rpc.__file__).parent
IMPURE = {"_thread", "logging", "queue", "random", "secrets", "socket", "threading", "time", "uuid"}


@pytest.mark.parametrize("module", PURE_RPC)
def test_a_pure_module_imports_nothing_impure(module: str) -> None:
    found = set()
    for node in ast.walk(ast.parse((ROOM / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    assert not found & IMPURE
