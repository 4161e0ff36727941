"""Load engines that read Delta tables. Whoever imports this is skipped without them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Any

from ..programs import package
from .arrow_data import pa

__all__ = ["by_polars", "deltalake", "duckdb"]

deltalake: Any = package("deltalake", "spark")
duckdb: Any = package("duckdb", "spark-test")
package("polars", "spark-test")

# Its threads and what they wait on are there for good, so before the guards count.
with tempfile.TemporaryDirectory() as _directory:
    deltalake.write_deltalake(_directory, pa.table({"id": [1]}))
    deltalake.DeltaTable(_directory).create_checkpoint()

_POLARS = """
import polars, sys
frame = polars.scan_delta(sys.argv[1])
if sys.argv[2:]:
    frame = frame.filter(polars.col("id") == int(sys.argv[2]))
frame.collect().write_ipc_stream(sys.stdout.buffer, compat_level=polars.CompatLevel.oldest())
"""


def by_polars(path: str, *ids: int) -> Any:
    """Read a table, or the rows of one id, by a process of its own: Polars leaves threads."""
    command = [sys.executable, "-c", _POLARS, path, *map(str, ids)]
    ran = subprocess.run(command, capture_output=True, timeout=60)
    assert ran.returncode == 0, ran.stderr.decode()
    return pa.ipc.open_stream(ran.stdout).read_all()
