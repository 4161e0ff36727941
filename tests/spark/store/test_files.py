"""Files give back what was written, any range of it, in batches of a bounded size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wsmux.spark.store import files
from wsmux.spark.store.files import FORMATS, READ_BYTES, READ_ROWS, FileFormat

from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows, wide

pytestmark = pytest.mark.spark


@pytest.fixture(params=sorted(FORMATS))
def file_format(request: pytest.FixtureRequest) -> FileFormat:
    return FORMATS[request.param]


def written(file_format: FileFormat, path: Path, batches: list[Any]) -> list[int]:
    writer = file_format.create(path, batches[0].schema)
    for batch in batches:
        writer.write(batch)
    return writer.close()


def test_every_type_comes_back(file_format: FileFormat, tmp_path: Path) -> None:
    batch = wide()
    groups = written(file_format, tmp_path / "f", [batch])
    columns = range(batch.num_columns)
    (read,) = file_format.read(tmp_path / "f", batch.schema, columns, groups, range(2))
    read.validate(full=True)
    assert read.schema.equals(batch.schema, check_metadata=True)
    assert str(read.to_pylist()) == str(batch.to_pylist())


def test_any_range_comes_back(file_format: FileFormat, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "GROUP_ROWS", 25)
    monkeypatch.setattr(files, "READ_ROWS", 7)
    groups = written(file_format, tmp_path / "f", [rows(0, 10), rows(10, 30), rows(40, 60)])
    assert sum(groups) == 100
    assert len(groups) > 3
    for start, end in ((0, 100), (0, 1), (24, 26), (33, 67), (99, 100), (50, 50)):
        read = list(file_format.read(tmp_path / "f", SCHEMA, [0, 1], groups, range(start, end)))
        assert ids(read) == list(range(start, end))
        assert all(batch.schema == SCHEMA for batch in read)


def test_some_columns_come_back(file_format: FileFormat, tmp_path: Path) -> None:
    groups = written(file_format, tmp_path / "f", [rows(0, 5)])
    (read,) = file_format.read(tmp_path / "f", SCHEMA, [1], groups, range(2, 5))
    assert read.schema.names == ["word"]
    assert read.to_pylist() == rows(0, 5).slice(2).select([1]).to_pylist()


def test_names_with_dots_do_not_lead_into_columns(file_format: FileFormat, tmp_path: Path) -> None:
    inner = pa.array([{"b": 1}], pa.struct([("b", pa.int8())]))
    batch = pa.record_batch([inner, pa.array([2])], names=["a", "a.b"])
    groups = written(file_format, tmp_path / "f", [batch])
    for place in (0, 1):
        (read,) = file_format.read(tmp_path / "f", batch.schema, [place], groups, range(1))
        assert read.to_pylist() == batch.select([place]).to_pylist()


def test_batches_are_bounded(file_format: FileFormat, tmp_path: Path) -> None:
    large = pa.record_batch([pa.array([b"x" * 1000] * 10_000)], names=["x"])
    groups = written(file_format, tmp_path / "f", [large])
    read = list(file_format.read(tmp_path / "f", large.schema, [0], groups, range(10_000)))
    assert sum(batch.num_rows for batch in read) == 10_000
    assert max(batch.nbytes for batch in read) < 2 * READ_BYTES
    many = pa.record_batch([pa.nulls(200_000)], names=["x"])
    groups = written(file_format, tmp_path / "g", [many])
    read = list(file_format.read(tmp_path / "g", many.schema, [0], groups, range(200_000)))
    assert max(batch.num_rows for batch in read) <= READ_ROWS


def test_an_abandoned_file_is_let_go(file_format: FileFormat, tmp_path: Path) -> None:
    writer = file_format.create(tmp_path / "f", SCHEMA)
    writer.write(rows(0, 5))
    writer.abandon()


def test_a_file_with_other_groups_is_damaged(file_format: FileFormat, tmp_path: Path) -> None:
    written(file_format, tmp_path / "f", [rows(0, 5)])
    for groups in ([4], [5, 1], []):
        with pytest.raises(pa.ArrowInvalid):
            list(file_format.read(tmp_path / "f", SCHEMA, [0], groups, range(9)))
