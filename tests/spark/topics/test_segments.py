"""Files of topics give back what was written, any range of it, in batches of a bounded size."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.base import READ_BYTES, READ_ROWS
from wsmux.spark.topics import segments
from wsmux.spark.topics.segments import Segment, SegmentWriter, check_schema, read_segment, timed

from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows, wide

pytestmark = pytest.mark.spark


def written(path: Path, *batches: Any, sync: bool = False) -> Segment:
    writer = SegmentWriter(path, batches[0].schema, sync=sync)
    for batch in batches:
        writer.write(batch)
    groups = writer.close()
    assert writer.rows == sum(json.loads(groups))
    return Segment(0, writer.rows, 0, path.name, groups, 1, 0.0, 0.0)


def read(root: Path, segment: Segment, schema: Any, names: Any, span: range) -> list[Any]:
    return list(read_segment(root, segment, schema, names, span, segment.file))


@pytest.mark.parametrize("times", [1, 3])
def test_every_type_comes_back(tmp_path: Path, times: int) -> None:
    batch = wide()
    segment = written(tmp_path / "f", *[batch] * times)
    (found,) = read(tmp_path, segment, batch.schema, batch.schema.names, range(2 * times))
    found.validate(full=True)
    assert found.schema.equals(batch.schema, check_metadata=True)
    assert str(found.to_pylist()) == str(batch.to_pylist() * times)


def test_any_range_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "READ_ROWS", 7)
    segment = written(tmp_path / "f", rows(0, 10), rows(10, 30), rows(40, 60))
    assert len(json.loads(segment.groups)) > 3
    for start, end in ((0, 100), (0, 1), (24, 26), (33, 67), (99, 100), (50, 50)):
        found = read(tmp_path, segment, SCHEMA, ["id", "word"], range(start, end))
        assert ids(found) == list(range(start, end))
        assert all(batch.schema == SCHEMA for batch in found)


@pytest.mark.parametrize("names", [["word"], ["word", "id"]])
def test_some_columns_come_back_as_asked_for(tmp_path: Path, names: list[str]) -> None:
    segment = written(tmp_path / "f", rows(0, 5))
    (found,) = read(tmp_path, segment, SCHEMA, names, range(2, 5))
    assert found.schema.names == names
    assert found.to_pylist() == rows(0, 5).slice(2).select(names).to_pylist()


def test_rows_come_with_their_times(tmp_path: Path) -> None:
    """Those of one commit with its time, those of a joined file with what stands in it."""
    schema = SCHEMA.append(pa.field("_time", pa.int8()))
    assert timed(schema).names == ["id", "word", "_time", "__time"]
    segment = written(tmp_path / "f", rows(0, 5))._replace(time=1.5)
    (found,) = read_segment(tmp_path, segment, SCHEMA, ["word"], range(1, 3), "f", "when")
    assert found.schema.names == ["word", "when"]
    assert [each.timestamp() for each in found.column("when").to_pylist()] == [1.5, 1.5]
    (found,) = read_segment(tmp_path, segment, SCHEMA, [], range(2), "f", "when")
    assert (found.schema.names, found.num_rows) == (["when"], 2)
    times = pa.array(range(5), pa.int64()).cast(timed(SCHEMA).field(2).type)
    joined = pa.RecordBatch.from_arrays([*rows(0, 5).columns, times], schema=timed(SCHEMA))
    segment = written(tmp_path / "j", joined)._replace(time=1.5)
    for names in (["word"], []):
        (found,) = read_segment(tmp_path, segment, SCHEMA, names, range(1, 3), "j", "when")
        assert found.column("when").cast(pa.int64()).to_pylist() == [1, 2]
    assert ids(read(tmp_path, segment, SCHEMA, ["id", "word"], range(5))) == [0, 1, 2, 3, 4]


def test_batches_are_bounded(tmp_path: Path) -> None:
    large = pa.record_batch([pa.array([b"x" * 1000] * 10_000)], names=["x"])
    segment = written(tmp_path / "f", large)
    found = read(tmp_path, segment, large.schema, ["x"], range(10_000))
    assert sum(batch.num_rows for batch in found) == 10_000
    assert max(batch.nbytes for batch in found) < 2 * READ_BYTES
    many = pa.record_batch([pa.nulls(200_000)], names=["x"])
    segment = written(tmp_path / "g", many)
    found = read(tmp_path, segment, many.schema, ["x"], range(200_000))
    assert max(batch.num_rows for batch in found) <= READ_ROWS


def test_small_batches_are_put_together(tmp_path: Path) -> None:
    segment = written(tmp_path / "f", *(rows(at, 1) for at in range(1000)), sync=True)
    assert segment.groups == "[1000]"
    assert ids(read(tmp_path, segment, SCHEMA, ["id"], range(1000))) == list(range(1000))


def test_what_is_abandoned_is_removed(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "f", SCHEMA, sync=False)
    writer.write(rows(0, 5))
    writer.abandon()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("groups", ["[4]", "[5,1]", "[]", "x"])
def test_a_file_with_other_groups_is_damaged(tmp_path: Path, groups: str) -> None:
    segment = written(tmp_path / "f", rows(0, 5))._replace(groups=groups)
    with pytest.raises(RiverError, match="f is damaged") as caught:
        read(tmp_path, segment, SCHEMA, ["id"], range(9))
    assert caught.value.code == "CORRUPT"


def test_any_damage_is_an_error_or_unseen(tmp_path: Path) -> None:
    """None of it ends the process; what is compressed cannot be read where it is damaged."""
    segment = written(tmp_path / "f", rows(0, 500))
    whole = (tmp_path / "f").read_bytes()
    found = set()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "f").write_bytes(damaged)
        try:
            read(tmp_path, segment, SCHEMA, ["id", "word"], range(500))
        except RiverError as error:
            found.add(error.code)
    assert found == {"CORRUPT"}


def test_a_schema_that_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise pa.ArrowNotImplementedError("no such type")

    check_schema(wide().schema)
    monkeypatch.setattr(pa.ipc, "new_file", refuse)
    with pytest.raises(RiverError, match="cannot be kept in Arrow files: no such type"):
        check_schema(SCHEMA)


@pytest.mark.parametrize("name", ["../f", "/etc/passwd", "link", "folder", "folder/../f"])
def test_nothing_outside_of_the_folder_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "t" / "folder").mkdir(parents=True)
    segment = written(tmp_path / "f", rows(0, 5))._replace(file=name)
    (tmp_path / "t" / "link").symlink_to(tmp_path / "f")
    with pytest.raises(RiverError) as caught:
        read(tmp_path / "t", segment, SCHEMA, ["id"], range(5))
    assert caught.value.code == "CORRUPT"
