"""The daemon that forks Spark's Python processes, with pyspark loaded before.

Spark's own loads it in each process anew, which costs more than most tests do. What has threads
from the start, pyarrow and pandas, is left to the processes. Where coverage measures, what it has
seen is kept after each task: Spark ends its processes by signals, behind which nothing is written.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from pyspark import daemon

__all__ = ["keeping"]

LOADED = ("sql", "sql.datasource", "sql.pandas.serializers", "sql.pandas.types", "sql.types")


def keeping(worker: Callable[..., int]) -> Callable[..., int]:
    """Return what runs a task and then writes what was measured."""
    import coverage

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        finally:
            measuring = coverage.Coverage.current()
            if measuring is not None:
                measuring.save()

    return run


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(f"pyspark.{name}")
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        daemon.worker = keeping(daemon.worker)
    daemon.manager()
