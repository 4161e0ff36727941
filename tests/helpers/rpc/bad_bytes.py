"""List the messages that are none, of both codecs, for those who receive them."""

from __future__ import annotations

from . import bad_json, bad_msgpack
from .codec_messages import Bad

__all__ = ["BAD_BYTES", "Row", "row_name"]

Row = tuple[str, Bad]

BAD_BYTES: list[Row] = [("json", bad) for bad in bad_json.TABLE]
BAD_BYTES += [("msgpack", bad) for bad in bad_msgpack.TABLE]


def row_name(row: Row) -> str:
    return f"{row[0]}-{row[1].name}"
