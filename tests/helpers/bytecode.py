"""Keep what Python compiles in pytest's cache where ``PYTHONDONTWRITEBYTECODE`` is set.

Else each worker compiles all tests, and each process that a test starts compiles all that it
imports, in every run. The variable asks for a tree without such files, and none of these is in it.
"""

from __future__ import annotations

import os
import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Set the cache for this process and for those it starts."""
    cache = getattr(config, "cache", None)  # there is none with "-p no:cacheprovider"
    if sys.dont_write_bytecode and cache is not None:
        sys.pycache_prefix = str(cache.mkdir("bytecode"))
        sys.dont_write_bytecode = False
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
