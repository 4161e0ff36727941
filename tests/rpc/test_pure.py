"""What lies below the calls knows no threads, sockets, clocks or chance."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import wsmux.rpc

ROOM = Path(wsmux.rpc.__file__).parent
PURE = [
    "backoff",
    "checker",
    "complaints",
    "connector",
    "connector_states",
    "dialect",
    "failures",
    "handshake",
    "ledger",
    "references",
    "refresh",
    "schema",
    "session",
    "sessions",
]
IMPURE = {"_thread", "logging", "queue", "random", "secrets", "socket", "threading", "time", "uuid"}


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_nothing_impure(module: str) -> None:
    found = set()
    for node in ast.walk(ast.parse((ROOM / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    assert not found & IMPURE
