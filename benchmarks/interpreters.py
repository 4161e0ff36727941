"""Ask another Python what is installed there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["described", "missing_module"]

# Seconds for an interpreter to start and look.
PATIENCE = 30.0

_MISSING = """
import importlib.util, json, sys
print(json.dumps(next((m for m in sys.argv[1:] if importlib.util.find_spec(m) is None), None)))
"""

_DESCRIBE = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
packages = {}
for name in sys.argv[1:]:
    try:
        packages[name] = version(name)
    except PackageNotFoundError:
        pass  # a module may be named unlike its package
python = f"{platform.python_implementation()} {platform.python_version()}"
print(json.dumps({"python": python, "packages": packages}))
"""


def missing_module(python: str, modules: Sequence[str]) -> str | None:
    """Return the first module that is not installed for ``python``.

    Raises:
        OSError: there is no such Python, or it does not answer.
    """
    if python == sys.executable:
        return next((m for m in modules if importlib.util.find_spec(m) is None), None)
    missing: str | None = _ask(python, _MISSING, modules)
    return missing


def described(python: str, packages: Sequence[str]) -> dict[str, Any]:
    """Return the versions of ``python`` and of those packages that are installed for it."""
    versions: dict[str, Any] = _ask(python, _DESCRIBE, packages)
    return versions


def _ask(python: str, program: str, arguments: Sequence[str]) -> Any:
    call = [python, "-c", program, *arguments]
    try:
        done = subprocess.run(call, capture_output=True, check=True, timeout=PATIENCE)
        return json.loads(done.stdout)
    except (ValueError, subprocess.SubprocessError) as error:
        raise OSError(f"{python} does not answer as a Python does") from error
