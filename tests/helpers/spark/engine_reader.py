"""Read Delta tables by other engines, in a process of its own: some leave threads behind.

A line on stdin, ``{"engine": ..., "path": ..., "ids": [...]}``, is answered with a line that tells
how many bytes follow, and those of an Arrow IPC stream; or, if it is negative, of an error. DuckDB
reads by its extension for Delta where the package ``duckdb-ext-delta`` is installed, since it would
download it else, and by a data set of ``deltalake`` where it is not: the first line tells which.
"""

from __future__ import annotations

import io
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa

__all__ = ["main"]


def extensions() -> str | None:
    """Return where DuckDB finds its extension for Delta, ``None`` without the package."""
    found = find_spec("duckdb_ext")
    for place in (found and found.submodule_search_locations) or ():
        folder = Path(place, "extensions", f"v{duckdb.__version__}")
        if [*folder.glob("*/delta.duckdb_extension")]:
            return str(folder.parent)
    return None


FOLDER = extensions()


def connected() -> Any:
    """Return DuckDB, with its extension for Delta where it is."""
    options = {"autoinstall_known_extensions": "false"}
    if FOLDER is not None:
        options["extension_directory"] = FOLDER
    connection = duckdb.connect(config=options)
    connection.execute("SET TimeZone='UTC'")
    if FOLDER is not None:
        connection.execute("LOAD delta")
    return connection


DUCKDB = connected()


def by_duckdb(path: str, ids: list[int]) -> Any:
    where = f"WHERE id IN ({', '.join(map(str, ids))})" if ids else ""
    if FOLDER is not None:
        query = f"SELECT * FROM delta_scan(?) {where}"
        return DUCKDB.sql(query, params=[path]).to_arrow_table()
    DUCKDB.register("delta", deltalake.DeltaTable(path).to_pyarrow_dataset())
    return DUCKDB.sql(f"SELECT * FROM delta {where}").to_arrow_table()


def by_polars(path: str, ids: list[int]) -> Any:
    frame = polars.scan_delta(path)
    if ids:
        frame = frame.filter(polars.col("id").is_in(ids))
    sink = io.BytesIO()
    frame.collect().write_ipc_stream(sink, compat_level=polars.CompatLevel.oldest())
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def by_deltalake(path: str, ids: list[int]) -> Any:
    table = deltalake.DeltaTable(path)
    return table.to_pyarrow_table(filters=[("id", "in", ids)] if ids else None)


ENGINES = {"deltalake": by_deltalake, "polars": by_polars, "duckdb": by_duckdb}


def answer(asked: dict[str, Any]) -> tuple[int, bytes]:
    try:
        found = ENGINES[asked["engine"]](asked["path"], asked["ids"])
    except BaseException as error:  # a panic of Rust is no Exception
        told = f"{type(error).__name__}: {error}".encode()
        return -len(told), told
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, found.schema) as writer:
        writer.write_table(found)
    return sink.tell(), sink.getvalue()


def main() -> None:
    out = sys.stdout.buffer
    out.write(b"delta_scan\n" if FOLDER is not None else b"a data set of deltalake\n")
    out.flush()
    for line in sys.stdin:
        size, data = answer(json.loads(line))
        out.write(f"{size}\n".encode() + data)
        out.flush()


if __name__ == "__main__":
    main()
