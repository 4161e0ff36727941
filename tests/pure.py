"""Name the modules without threads, sockets and clocks; run, it prints them for coverage."""

from __future__ import annotations

__all__ = ["PURE_RPC"]

CORE = (
    "protocols/*",
    "websocket/*",
    "exceptions.py",
    "config.py",
    "deadline.py",
    "buffer.py",
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


if __name__ == "__main__":
    paths = [*CORE, *(f"rpc/{module}.py" for module in PURE_RPC)]
    print(",".join(f"wsmux/{path}" for path in paths))  # noqa: T201 - for the shell
