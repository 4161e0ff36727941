"""Imports point down: one folder is one layer, and no module imports itself on a way round.

The order of the folders is written down once, here, and has no default: a module in a folder that
is not named fails. Protocols stay free of threads, sockets and clocks; the two WebSocket libraries
are known to the handshakes and to what stands above them. Nothing imports a module of tests: what
several need stands in ``helpers``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from .helpers.pure_modules import PURE, ROOT
from .helpers.tables import each_case, each_row

MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
TESTS = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path
    for path in sorted((ROOT.parent / "tests").rglob("*.py"))
}
# Few modules have such a word, and only these are worth parsing.
NAMES_OF_TESTS = re.compile(
    rf"\b(?:{'|'.join({path.stem for path in TESTS.values() if path.stem.startswith('test_')})})\b"
)

# From the bottom up. A folder imports from the lines below its own; the folders of one line do not
# know each other.
LAYERS = (
    ("exceptions",),
    ("runtime",),
    ("config",),
    ("protocols",),
    ("handshake", "storage", "transport"),
    ("recording",),
    ("mux",),
    ("endpoints",),
    ("durable",),
    ("client", "server"),
    ("diagnostics",),
    ("flask",),
    ("adapters", "bus", "cluster", "opentelemetry", "prometheus", "rpc", "tunnel", "wsgi"),
    ("doctor", "spark", "testing"),
    ("cli",),
    ("__main__",),
)
HEIGHT = {folder: height for height, line in enumerate(LAYERS) for folder in line}
# Imported where the name is used: the public names of the package, and of its parts.
FACADE = "wsmux"

IMPURE = {"_thread", "logging", "queue", "random", "secrets", "socket", "threading", "time", "uuid"}
HANDSHAKES = {"websocket", "simple_websocket"}
TEST_TOOLS = {"pytest", "_pytest", "hypothesis"}
# What a folder offers of a folder above it, by a name that is imported when it is used.
OFFERED = {
    ("wsmux.flask", "wsmux.bus.flask_extension", "types"),
    ("wsmux.mux.connection", "wsmux.durable.interfaces", "types"),
    ("wsmux.mux.connection", "wsmux.durable.sender", "lazy"),
    ("wsmux.mux.connection", "wsmux.durable.sender", "types"),
}
# A stream names the connection it belongs to, which opens durable ones.
TYPE_CIRCLES = [
    [
        "wsmux.durable.sender",
        "wsmux.mux.connection",
        "wsmux.mux.stream",
        "wsmux.mux.stream_socket",
    ]
]


class Import(NamedTuple):
    """One name that a module imports: at its top, within a function, or for types alone."""

    name: str
    when: str


@cache  # when a test asks: each worker collects all tests, and few need this
def imports_of(module: str) -> list[Import]:
    return list(_imports_of(module))


def _imports_of(module: str) -> Iterator[Import]:
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    tree = ast.parse(path.read_text())
    when: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            when |= dict.fromkeys(ast.walk(node), "lazy")
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            when |= dict.fromkeys(ast.walk(node), "types")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, when.get(node, "top"))
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, package)
            for name in node.names:
                inner = f"{base}.{name.name}"
                yield Import(inner if inner in MODULES else base, when.get(node, "top"))


def base_of(node: ast.ImportFrom, package: list[str]) -> str:
    """Return the whole name of what an import in a package is from."""
    above = package[: len(package) - node.level + 1] if node.level else []
    return ".".join(above + ([node.module] if node.module else []))


def folder(module: str) -> str:
    return module.split(".")[1]


def upward(module: str) -> list[str]:
    """Return what a module imports of wsmux that does not stand below it."""
    found = []
    for name, when in imports_of(module):
        if (module, name, when) in OFFERED:
            continue
        if name == FACADE:
            if folder(module) not in {"cli", "__main__"}:
                found.append(name)
        elif name.startswith("wsmux.") and folder(name) != folder(module):
            above = HEIGHT[folder(name)] >= HEIGHT[folder(module)]
            # Of the others, Spark knows the public names alone, and nobody the test kit.
            inner = folder(module) == "spark" and folder(name) == "rpc" and name != "wsmux.rpc"
            if above or inner or folder(name) == "testing":
                found.append(name)
    return found


def foreign(module: str) -> list[str]:
    """Return the packages of others that a module imports and may not."""
    found = []
    for name, _ in imports_of(module):
        top = name.split(".")[0]
        if top == "wsmux" or top in sys.stdlib_module_names:
            continue
        low = HEIGHT[folder(module)] <= HEIGHT["protocols"]
        handshake = top in HANDSHAKES and HEIGHT[folder(module)] < HEIGHT["handshake"]
        tools = top in TEST_TOOLS and module != "wsmux.testing.plugin"
        if low or handshake or tools:
            found.append(name)
    return found


def circles(kinds: set[str]) -> list[set[str]]:
    """Return the sets of modules that reach each other by imports of these kinds (Tarjan, 1972)."""
    graph = {
        module: [
            name
            for name, when in imports_of(module)
            # What a package offers is imported through it; that a part of it is no circle.
            if name in MODULES and when in kinds and not module.startswith(f"{name}.")
        ]
        for module in MODULES
    }
    found, order, lowest, path = [], {}, {}, []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for name in graph[module]:
            if name not in order:
                visit(name)
                lowest[module] = min(lowest[module], lowest[name])
            elif name in path:
                lowest[module] = min(lowest[module], order[name])
        if lowest[module] == order[module]:
            start = path.index(module)
            found.append(set(path[start:]))
            del path[start:]

    for module in graph:
        if module not in order:
            visit(module)
    return [each for each in found if len(each) > 1]


@each_case
@each_row(name for name in MODULES if name != FACADE)
def test_module_imports_only_what_stands_below_it(module: str) -> None:
    assert upward(module) == []
    assert foreign(module) == []


def test_no_module_imports_itself_on_a_way_round() -> None:
    assert circles({"top", "lazy"}) == []


def test_type_hints_close_the_one_circle_that_is_named() -> None:
    assert sorted(map(sorted, circles({"top", "lazy", "types"}))) == TYPE_CIRCLES


def reached(module: str) -> set[str]:
    """Return what a module imports at its top, and what that imports, within wsmux and without."""
    found: set[str] = set()
    left = [module]
    while left:
        module = left.pop()
        imports = imports_of(module) if module in MODULES else ()
        names = {name for name, when in imports if when == "top"} - found
        found |= names
        left += names
    return found


@each_case
@each_row(PURE)
def test_pure_module_imports_no_threads_sockets_or_clocks(path: str) -> None:
    module = f"wsmux/{path}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert not {name for name, _ in imports_of(module)} & IMPURE
    if folder(module) == "protocols":
        assert not reached(module) & IMPURE


def test_conditions_are_those_that_a_signal_may_interrupt() -> None:
    """The standard library's stay locked where Ctrl-C comes as they are entered."""
    made = "threading.Condition("
    makers = {name for name, path in MODULES.items() if made in path.read_text()}
    assert makers == {"wsmux.testing.locks"}  # it watches those of tests


def arrows() -> dict[tuple[str, str], set[str]]:
    """Return which folder imports from which, and when: at the top, within a function, as types."""
    found: dict[tuple[str, str], set[str]] = {}
    for module in MODULES:
        for name, when in imports_of(module):
            if FACADE not in (module, name) and name.startswith("wsmux."):
                found.setdefault((folder(module), folder(name)), set()).add(when)
    return {pair: when for pair, when in found.items() if pair[0] != pair[1]}


def test_arrows_between_folders_point_down() -> None:
    """Print the graph, from the bottom up: ``pytest -n 0 -rP`` shows it."""
    upward = []
    for line in LAYERS:
        for source in line:
            below = {to: when for (start, to), when in arrows().items() if start == source}
            names = [
                to if "top" in when else f"{to} ({', '.join(sorted(when))})"
                for to, when in sorted(below.items(), key=lambda arrow: HEIGHT[arrow[0]])
            ]
            upward += [(source, to) for to in below if HEIGHT[to] >= HEIGHT[source]]
            print(f"{HEIGHT[source]:2} {source:13} -> {', '.join(names) or '-'}")  # noqa: T201
    print(f"{len(HEIGHT)} folders, {len(arrows())} arrows, {len(upward)} upward: {upward}")  # noqa: T201
    assert upward == [("mux", "durable"), ("flask", "bus")]  # those that ``OFFERED`` names


def test_every_folder_has_one_place() -> None:
    assert set(HEIGHT) == {folder(module) for module in MODULES if module != FACADE}
    assert len(HEIGHT) == sum(map(len, LAYERS))


def imported_tests(module: str) -> set[str]:
    """Return the modules of tests that a module below ``tests`` imports, or imports from."""
    text = TESTS[module].read_text()
    if not NAMES_OF_TESTS.search(text):
        return set()
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, module.split(".")[:-1])
            found |= {base, *(f"{base}.{name.name}" for name in node.names)}
    return {name for name in found & TESTS.keys() if name.rpartition(".")[2].startswith("test_")}


def test_nothing_imports_a_module_of_tests() -> None:
    found = {(module, name) for module in TESTS for name in imported_tests(module)}
    assert found == set()
