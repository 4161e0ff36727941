"""Imports point down only: the table of layers, enforced on every module.

L0 needs the standard library alone; L1 is pure; the two WebSocket libraries stop at L3. The test
kit stands apart: nothing imports it, and pytest is imported in its plugin only.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "wsmux"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# The second name of a module to its layer; any other is L2. ``ALL`` may import everything.
ALL = 9
LAYERS = {"": ALL, "__main__": ALL, "cli": ALL}
LAYERS |= dict.fromkeys(
    (
        "access",
        "addresses",
        "arguments",
        "exceptions",
        "config",
        "deadlines",
        "buffer",
        "headers",
        "hints",
        "logs",
        "memory",
        "naming",
        "snapshots",
        "recording",
    ),
    0,
)
LAYERS |= dict.fromkeys(("protocols", "websocket"), 1)
LAYERS |= {"transports": 3} | dict.fromkeys(
    ("acceptor", "admission", "behaviour", "bridging", "client", "draining", "replay", "server"), 4
)
LAYERS |= dict.fromkeys(("live", "livesocket", "watchdog", "workers"), 4)
LAYERS |= dict.fromkeys(("flask", "flask_debug", "flask_responses", "flask_script"), 4)
LAYERS |= {"http_exchange": 4}
LAYERS |= dict.fromkeys(("adapters", "doctor", "opentelemetry", "prometheus", "wsgi"), 5)
LAYERS |= {"rpc": 5, "bus": 5, "tunnel": 5, "spark": 6, "testing": 7}
MAY_IMPORT = {0: {0}, 1: {0, 1}, 2: {0, 1, 2}, 3: {0, 1, 3}}
MAY_IMPORT |= {4: {0, 1, 2, 3, 4}, 5: {0, 1, 2, 3, 4, 5}, 6: {0, 2, 4, 5, 6}}
MAY_IMPORT |= {7: {0, 1, 2, 3, 4, 7}}  # the test kit, which nothing else imports
IMPURE = {"threading", "_thread", "socket", "time", "logging", "queue"}
HANDSHAKES = {"websocket", "simple_websocket"}
TEST_TOOLS = {"pytest", "_pytest", "hypothesis"}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def layer(module: str) -> int:
    return LAYERS.get(room(module), 2)


def imported(module: str) -> Iterator[str]:
    """Yield the absolute name of everything that a module imports, wherever it does."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join(above + ([node.module] if node.module else []))
            for name in node.names:
                inner = f"{base}.{name.name}"
                yield inner if inner in MODULES else base


def violations(module: str) -> list[str]:
    """Return what a module imports against the table."""
    mine = layer(module)
    if mine == ALL:
        return []
    found = []
    for name in imported(module):
        top = name.split(".")[0]
        if top == "wsmux":
            allowed = layer(name) in MAY_IMPORT[mine] and (mine, room(name)) != (1, "deadlines")
            if layer(name) == 5 and room(name) != room(module):
                # RPC and bus know nothing of each other; Spark knows the public names of RPC.
                allowed = (mine, name) == (6, "wsmux.rpc")
        elif top not in sys.stdlib_module_names:
            masker = (module, name) == ("wsmux.websocket.masking", "websockets.speedups")
            allowed = masker or (mine > 1 and not (mine == 2 and top in HANDSHAKES))
            if top in TEST_TOOLS:
                allowed = module == "wsmux.testing.plugin"
        else:
            allowed = mine != 1 or top not in IMPURE
        if not allowed:
            found.append(name)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_what_its_layer_may(module: str) -> None:
    assert violations(module) == []


@pytest.mark.parametrize("module", [name for name in MODULES if layer(name) == ALL])
def test_what_may_import_everything_does_without_the_test_kit(module: str) -> None:
    assert not [name for name in imported(module) if room(name) == "testing"]


def test_every_module_of_the_table_exists() -> None:
    assert set(LAYERS) - {room(module) for module in MODULES} <= {"__main__"}
