"""Ship wsmux to the workers of a cluster where it cannot be installed.

A client needs only pure Python packages, and ``msgpack``, which has a pure Python fallback; so all
of it fits into a zip of about 800 KB, which Spark puts on the path of its workers. That covers
calls and streams; parts that need pyarrow use the workers' own.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..runtime.hints import how_to_install

__all__ = ["build", "ship"]

# Packages that clients import, and the module by which Spark finds the data source.
PACKAGES = ("wsmux", "websocket", "simple_websocket", "wsproto", "h11", "msgpack")
OPTIONAL = ("pyspark_wsmux",)

# Not needed by workers.
LEFT_OUT = ("wsmux/bus/", "wsmux/cli/", "websocket/tests/")

# The earliest time in a zip, so that equal contents make equal files.
EPOCH = (1980, 1, 1, 0, 0, 0)


def ship(spark: Any) -> str:
    """Put wsmux on the path of a session's workers; return the file that was sent.

    Works with both kinds of ``SparkSession``; call it before jobs. Repeated calls send an identical
    file.

    Raises:
        ImportError: a package that clients need is not installed here.
    """
    path = build()
    context = getattr(spark, "_sc", None)
    if context is not None:
        context.addPyFile(path)
    else:
        spark.addArtifacts(path, pyfile=True)
    return path


def build(directory: str | os.PathLike[str] | None = None) -> str:
    """Write the zip, and return its path.

    Args:
        directory: where to write it; by default a new temporary directory.
    """
    made = Path(directory or tempfile.mkdtemp(prefix="wsmux-")) / "wsmux_shipped.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_files()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    return str(made)


def _files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            text = f"{package} is not installed, and workers need it: {how_to_install('rpc')}"
            raise ImportError(text)
        root = Path(spec.submodule_search_locations[0])
        for path in root.rglob("*.py"):
            name = f"{package}/{path.relative_to(root).as_posix()}"
            if not name.startswith(LEFT_OUT):
                yield name, path
    for module in OPTIONAL:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            yield f"{module}.py", Path(spec.origin)
