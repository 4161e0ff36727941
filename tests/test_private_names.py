"""Private names are known where they are defined, and to the tests of that very module.

Whatever else has to look inside does so by one module for each room of ``tests/helpers``, so that
another name is one more line there. The list of these has no default: it may become shorter.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .helpers.pure_modules import ROOT

HERE = ROOT.parent

INSIDE = {
    "helpers/benchmark_commands.py",
    "helpers/bus/inside.py",
    "helpers/inside.py",
    "helpers/rpc/session_world.py",  # it copies and compares whole machines
    "helpers/spark/inside.py",
}
# It runs in another interpreter, on another implementation, whose names are like ours.
OF_OTHERS = {"helpers/interop/river_peer.py"}

# Documented by the standard library, in spite of their underscore.
DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_make", "_replace"}

NAME = re.compile(r"(?<![\w.])(?:self\.|cls\.)?(_[a-zA-Z]\w*)")
# Whatever a module without any of these reaches is its own.
SUSPECT = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]|[\"']_[a-zA-Z]|import .*\b_[a-zA-Z]")
DOTTED = re.compile(r"(?:wsmux|benchmarks)[\w.]*\.(_[a-zA-Z]\w*)")


@cache
def names() -> dict[Path, set[str]]:
    """Return the private names that each module of the packages uses of itself."""
    return {
        path.relative_to(HERE): set(NAME.findall(path.read_text()))
        for package in ("wsmux", "benchmarks")
        for path in (HERE / package).rglob("*.py")
    }


def beside(path: Path) -> Iterator[Path]:
    """Yield the modules that a module of tests is beside: of its name, or of its beginning."""
    words = path.stem.removeprefix("test_").split("_")
    for folder in (Path("wsmux") / path.parent, path.parent):  # or of tests/benchmarks
        yield folder / "__init__.py"
        for count in range(1, len(words) + 1):
            part = folder / "_".join(words[:count])
            yield part.with_suffix(".py")
            yield from (each for each in names() if part in each.parents)


def reached(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a module reaches in something else."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            own.add(node.attr)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value, name) if not of_self(node):
                if not (isinstance(value, ast.Name) and name in own):
                    yield name
            case ast.Call(args=[_, ast.Constant(str(name)), *_]) if "attr" in ast.unparse(
                node.func
            ):
                yield name
            case ast.Constant(str(text)) if found := DOTTED.fullmatch(text):
                yield found[1]
            case ast.ImportFrom(module=str(module)) if module.startswith("wsmux"):
                yield from (alias.name for alias in node.names)


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def foreign(path: Path) -> set[str]:
    """Return the private names of other modules that a module of tests reaches."""
    text = (HERE / "tests" / path).read_text()
    if not SUSPECT.search(text):
        return set()
    found = {name for name in reached(ast.parse(text)) if re.match(r"_[a-zA-Z]", name)}
    found -= DOCUMENTED
    if path.name.startswith("test_"):
        for module in beside(path):
            found -= names().get(module, set())
    return found & set().union(*names().values())


def test_private_names_are_reached_by_the_tests_of_their_module_alone() -> None:
    paths = [path.relative_to(HERE / "tests") for path in (HERE / "tests").rglob("*.py")]
    found = {str(path): names for path in paths if (names := foreign(path))}
    assert {path: names for path, names in found.items() if path not in INSIDE | OF_OTHERS} == {}
    assert found.keys() >= INSIDE | OF_OTHERS  # none is listed that does not look inside any more
