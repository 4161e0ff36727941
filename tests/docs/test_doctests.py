"""Run the examples in the docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import wsmux
from wsmux.runtime.hints import how_to_install

# Modules whose examples are what a newcomer tries first.
WITH_EXAMPLES = ["wsmux.client", "wsmux.server"]


def pure_python_modules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(wsmux.__path__, "wsmux.")]
    return [name for name in names if not name.startswith(("wsmux.cli", "wsmux.__main__"))]


# Packages that may be missing, to the extra that brings them.
OPTIONAL = {"pyspark": "spark", "opentelemetry": "tracing"}


def imported(name: str) -> ModuleType:
    """Import a module; skip if it needs an optional package that is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error if error.__cause__ is None else error.__cause__
        package = str(getattr(missing, "name", "")).split(".")[0]
        if package not in OPTIONAL:
            raise
        pytest.skip(f"needs {package}: {how_to_install(OPTIONAL[package])}")


def examples(module: ModuleType) -> int:
    return sum(len(test.examples) for test in doctest.DocTestFinder().find(module))


@pytest.mark.parametrize("name", ["wsmux", *pure_python_modules()])
def test_the_examples_run(name: str) -> None:
    module = imported(name)
    if ">>>" in Path(str(module.__file__)).read_text():  # else looking for them takes longer
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_there_are_examples(name: str) -> None:
    assert examples(importlib.import_module(name)) > 0
