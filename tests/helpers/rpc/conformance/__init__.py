"""Say which test here stands for which case of the shipped implementations' own suites.

The suites are those of the TypeScript package ``@replit/river`` 0.220.1 and of the Python package
``replit-river`` 0.17.20. A case is named as there, with its describe blocks or parameters, behind
its group; a group is a file of the suite. Cases that run over several transports and codecs count
once. Tests are named by file and name, in ``tests/rpc``.

``OURS`` holds the cases that hold here too, ``DIFFERENT`` those whose outcome here is another one
on purpose, with the reason and the tests that show it, ``NOT_OURS`` those of what there is no such
thing here.
"""

from __future__ import annotations

from . import calls, clients, python, schemas, sessions, values

__all__ = ["DIFFERENT", "GROUPS", "NOT_OURS", "OURS", "PYTHON", "TABLES", "TYPESCRIPT"]

Tests = tuple[str, ...]

# How many cases each group has.
TYPESCRIPT = {
    "e2e": 38,
    "handler": 10,
    "cancellation": 17,
    "cleanup": 12,
    "context": 3,
    "deferCleanup": 12,
    "middleware": 6,
    "disconnects": 8,
    "invalid-request": 13,
    "negative": 8,
    "backpressure": 3,
    "allocation": 2,
    "unserializable": 4,
    "serialize": 5,
    "streams": 33,
    "codec": 20,
    "protobuf codec": 3,
    "protobuf": 7,
    "tracing": 4,
    "events": 5,
    "message": 7,
    "rateLimit": 9,
    "ws": 5,
    "transport": 28,
    "stateMachine": 78,
    "typescript-stress": 25,
    "duplexPair": 1,
    "observable": 4,
}
PYTHON = {
    "v2": 12,
    "v1 communication": 10,
    "v1 handshake": 1,
    "v1 timeout": 2,
    "v1 message buffer": 2,
    "v1 rate limiter": 5,
    "v1 seq manager": 5,
    "v1 opentelemetry": 9,
    "v1 codegen": 27,
}
GROUPS = {**TYPESCRIPT, **PYTHON}

TABLES = (calls, clients, python, schemas, sessions, values)


def _tests(named: str | Tests) -> Tests:
    return (named,) if isinstance(named, str) else named


OURS: dict[str, Tests] = {
    f"{group} > {case}": _tests(named)
    for table in TABLES
    for group, cases in table.OURS.items()
    for case, named in cases.items()
}

DIFFERENT: dict[str, tuple[str, Tests]] = {
    f"{group} > {case}": (why, _tests(named))
    for table in TABLES
    for group, cases in table.DIFFERENT.items()
    for case, (why, named) in cases.items()
}

NOT_OURS: dict[str, str] = {
    f"{group} > {case}": why
    for table in TABLES
    for group, cases in table.NOT_OURS.items()
    for case, why in cases.items()
}
