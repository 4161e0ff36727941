"""Compile what the tests need once: keep it, and let several workers share the work.

Where ``PYTHONDONTWRITEBYTECODE`` is set, each worker would compile all tests, and each process that
a test starts all that it imports, in every run. So it is kept in pytest's cache: the variable asks
for a tree without such files, and none of these is in it.

In a first run all workers would compile the same file at the same moment, since all collect the
same files in the same order. So each imports a share of its own first.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Set the cache for this process and for those it starts."""
    cache = getattr(config, "cache", None)  # there is none with "-p no:cacheprovider"
    if sys.dont_write_bytecode and cache is not None:
        sys.pycache_prefix = str(cache.mkdir("bytecode"))
        sys.dont_write_bytecode = False
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection(session: pytest.Session) -> None:
    """Import the share of this worker, if there are several."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for name in list(modules(session.config))[number::count]:
        # What cannot be imported, or skips itself, does so once more when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def modules(config: pytest.Config) -> Iterator[str]:
    """Yield the names of the modules of tests in the folders that are to be collected."""
    for argument in config.args:
        for path in sorted(config.invocation_params.dir.joinpath(argument).rglob("test_*.py")):
            if path.is_relative_to(config.rootpath):
                yield ".".join(path.relative_to(config.rootpath).with_suffix("").parts)
