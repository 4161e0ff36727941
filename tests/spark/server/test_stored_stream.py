"""Rows of which some come as they are stored: as sent, cut anywhere, or changed."""

from __future__ import annotations

import io
import json
import random
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.protocol import FAILURE, encode_line
from wsmux.spark.server.arrow_stream import Limits
from wsmux.spark.server.stored_stream import receive_stored, send_stored
from wsmux.spark.tables import parquet_writer, stored_files
from wsmux.spark.tables.actions import DataFile
from wsmux.spark.tables.data_files import NewFile
from wsmux.spark.tables.folder import LocalFolder
from wsmux.spark.tables.stored_files import MAX_BLOCK, MAX_TOLD, StoredGroup, pass_file

from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows

pytestmark = pytest.mark.spark


class Filling(io.BytesIO):
    """A stream whose bytes are there already."""

    def fill(self, target: Any) -> int:
        return self.readinto(target)


class Sink(io.BytesIO):
    """Take what is written."""

    def write(self, data: Any) -> int:
        return super().write(data)


def groups(root: Path, start: int, count: int) -> list[StoredGroup]:
    """Return some rows as they are stored, in row groups of ten."""
    file = NewFile(LocalFolder(root, sync=False), f"{start}.parquet", SCHEMA)
    for at in range(start, start + count, 10):
        file.write(rows(at, min(10, start + count - at)))
        file.flush()
    told = file.close()
    data = DataFile(f"{start}.parquet", told.size, 0, told.rows, told.stats, {}, 0)
    folder, span = LocalFolder(root, sync=False), range(count)
    found = list(pass_file(folder, data, SCHEMA, SCHEMA.names, span, "x"))
    assert all(isinstance(each, StoredGroup) for each in found)
    return found


@pytest.fixture
def items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Batches and row groups in turns, 77 rows."""
    monkeypatch.setattr(stored_files, "LEAST", 0)
    monkeypatch.setattr(parquet_writer, "GROUP_ROWS", 1000)
    stored = groups(tmp_path, 5, 30), groups(tmp_path, 40, 30)
    return [rows(0, 5), *stored[0], rows(35, 3), rows(38, 2), *stored[1], rows(70, 7)]


def sent(items: Sequence[Any], limits: Limits | None = None) -> bytes:
    sink = Sink()
    send_stored(sink, SCHEMA, items, limits or Limits())
    return sink.getvalue()


def received(data: bytes) -> list[int]:
    return ids(receive_stored(Filling(data), Limits()))


def gather(batches: Iterator[Any], found: list[int]) -> None:
    for batch in batches:
        found += ids([batch])


def refused(data: bytes) -> str:
    with pytest.raises(RiverError) as caught:
        received(data)
    assert "\n" not in caught.value.message
    return f"{caught.value.code}: {caught.value.message}"


def test_rows_come_as_they_were_sent(items: list[Any]) -> None:
    assert received(sent(items)) == list(range(77))
    assert received(sent([])) == []
    assert received(sent(items[:1])) == list(range(5))
    assert received(sent(items[1:3])) == list(range(5, 25))


def test_a_stream_that_ends_early_is_refused(items: list[Any]) -> None:
    data = sent(items)
    for size in range(0, len(data), 7):
        assert refused(data[:size]).startswith("BAD_ARROW")
    assert refused(data + b"x") == "BAD_ARROW: bytes follow the end of the rows"


def test_the_reason_may_stand_in_place_of_any_block(items: list[Any]) -> None:
    """What came before it is passed on."""
    reason = FAILURE + encode_line({"ok": False, "code": "BUSY", "message": "later"})

    def failing(count: int) -> Iterator[Any]:
        yield from items[:count]
        raise RiverError("BUSY", "later")

    for count in range(len(items) + 1):
        sink = Sink()
        with pytest.raises(RiverError):
            send_stored(sink, SCHEMA, failing(count), Limits())
        batches = receive_stored(Filling(sink.getvalue() + reason), Limits())
        found: list[int] = []
        with pytest.raises(RiverError, match="BUSY: later"):
            gather(batches, found)
        expected = [0, 5, 15, 25, 35, 38, 40, 50, 60, 70, 77][count]
        assert found == list(range(expected))


def test_a_cut_within_a_row_group_is_no_end(items: list[Any]) -> None:
    class Cut(Filling):
        def fill(self, target: Any) -> int:
            count = super().fill(target)
            if count < len(target):
                raise ConnectionResetError("cut")
            return count

    data, found = sent(items), list[int]()
    with pytest.raises(ConnectionResetError, match="cut"):
        gather(receive_stored(Cut(data[: len(data) // 2]), Limits()), found)
    assert found == list(range(len(found)))
    assert len(found) >= 5


def block(head: bytes, data: bytes = b"") -> bytes:
    body = struct.pack("<I", len(head)) + head + data
    return struct.pack("<q", len(body)) + body


def test_blocks_are_bounded_and_have_heads(items: list[Any]) -> None:
    schema = sent([])[:-8]
    assert refused(schema + struct.pack("<q", MAX_BLOCK + 1)).startswith("TOO_LARGE")
    assert refused(schema + struct.pack("<q", -2)).startswith("TOO_LARGE")
    assert "ends behind its 3 bytes" in refused(schema + struct.pack("<q", 3) + b"\0\0\0")
    assert "ends behind its 4" in refused(schema + struct.pack("<qI", 4, 1))
    for head in (b"", b"{", b"[]", b"\xff"):
        assert "the head of a block is malformed" in refused(schema + block(head))
    head = b" " * (MAX_TOLD + 1)
    assert refused(schema + block(head)).startswith("TOO_LARGE: the head of a block")
    assert "a row group is malformed: file is missing" in refused(schema + block(b"{}"))
    told = json.dumps(items[1].told).encode()
    assert refused(schema + block(told)).startswith("CORRUPT: x is damaged")
    (other,) = pa.Table.from_batches([rows(0, 1)]).rename_columns(["id", "text"]).to_batches()
    sink = Sink()
    send_stored(sink, other.schema, [other], Limits())
    changed = schema + sink.getvalue()[len(schema) :]
    assert refused(changed) == "BAD_ARROW: a part has another schema than the others"
    twice = bytes(pa.schema([("id", pa.int64())] * 2).serialize())
    twice = struct.pack("<q", len(twice)) + twice
    assert refused(twice) == "BAD_ARROW: columns of the schema have the same name"
    assert refused(struct.pack("<q", Limits().head_bytes + 1)).startswith("TOO_LARGE")
    assert refused(struct.pack("<q", 4) + b"xxxx").startswith("BAD_ARROW")


def test_bytes_that_were_changed_are_refused(items: list[Any]) -> None:
    """Or are those that nobody looks at, or tell of other rows."""
    data, codes = sent(items), Counter[str]()
    drawn = random.Random(3)
    for _ in range(1000):
        bad = bytearray(data)
        bad[drawn.randrange(len(bad))] ^= 1 << drawn.randrange(8)
        try:
            received(bytes(bad))
            codes["read"] += 1
        except RiverError as error:
            codes[error.code] += 1
    assert codes["CORRUPT"] > 100
    assert codes["BAD_ARROW"] > 100
