"""Name the modules without threads, sockets and clocks; run, it prints them for coverage."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["PURE_BUS", "PURE_RPC", "PURE_TUNNEL", "impure_imports"]

IMPURE = {"_thread", "logging", "queue", "random", "secrets", "socket", "threading", "time", "uuid"}

CORE = (
    "protocols/*",
    "websocket/*",
    "addresses.py",
    "arguments.py",
    "exceptions.py",
    "config.py",
    "deadlines.py",
    "buffer.py",
    "hints.py",
)

PURE_RPC = (
    "backoff",
    "checker",
    "codec",
    "codecs",
    "complaints",
    "connector",
    "connector_states",
    "dialect",
    "envelope",
    "errors",
    "failures",
    "framing",
    "handshake",
    "json_codec",
    "ledger",
    "msgpack_codec",
    "options",
    "references",
    "refresh",
    "results",
    "schema",
    "served",
    "session",
    "sessions",
    "values",
)

PURE_BUS = (
    "address",
    "answers",
    "backlog",
    "envelope",
    "errors",
    "federation_schedule",
    "keys",
    "limiter",
    "messages",
    "names",
    "peer_json",
    "ranker",
    "receipt",
    "replays",
    "router",
    "ss58",
    "tokens",
)

PURE_TUNNEL = ("allow", "errors", "heads", "places", "socks")


def impure_imports(module: Path) -> set[str]:
    """Return what a module imports of threads, sockets, clocks and chance."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return found & IMPURE


if __name__ == "__main__":
    paths = [*CORE, *(f"rpc/{module}.py" for module in PURE_RPC)]
    paths += [f"bus/{module}.py" for module in PURE_BUS]
    paths += [f"tunnel/{module}.py" for module in PURE_TUNNEL]
    print(",".join(f"wsmux/{path}" for path in paths))  # noqa: T201 - for the shell
