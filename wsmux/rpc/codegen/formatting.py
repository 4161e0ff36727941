"""Format a client with ruff, and compare clients regardless of their formatting.

The formatting depends on the version of ruff, and on whether it is installed; the code does not.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from inspect import cleandoc
from pathlib import Path

__all__ = ["find_ruff", "formatted", "is_same_code"]


def find_ruff() -> str | None:
    """Return the path of ruff: beside this Python, else the first on ``PATH``; ``None`` without."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("ruff", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))


def formatted(text: str, ruff: str, width: int) -> str:
    """Return a module formatted by ruff, regardless of any configuration file.

    Raises:
        OSError: ruff cannot be run, or fails.
    """
    command = [ruff, "format", "--isolated", "--line-length", str(width), "-"]
    run = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=False)
    if run.returncode:
        raise OSError(f"{ruff} did not format the client: {run.stderr.strip()}")
    return run.stdout


def is_same_code(one: str, other: str) -> bool:
    """Return whether two modules are equal except for formatting and comments.

    Raises:
        SyntaxError: one of them is not Python.
    """
    return _syntax(one) == _syntax(other)


def _syntax(text: str) -> str:
    """Return the syntax tree of a module, with docstrings stripped as formatters do."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant(str(docstring)) as constant):
                constant.value = cleandoc(docstring.strip())
    return ast.dump(tree)
