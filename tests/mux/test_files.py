"""Use streams wherever the standard library takes a binary file.

In the four wires over two carriers, and over every carrier in one wire.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import wsmux

from ..helpers.carriers import SOME
from ..helpers.connections import Join, Spawn
from ..helpers.joined_streams import Joined, open_pair
from ..helpers.scripted import WAIT, pattern
from ..helpers.stream_outcomes import check_read_of_reset

KIB = 1024


@pytest.fixture(params=SOME, ids=str)
def streams(request: pytest.FixtureRequest, join_over: Join) -> Joined:
    return open_pair(*join_over(request.param))


def test_a_stream_tells_what_kind_of_file_it_is(streams: Joined) -> None:
    near = streams.near
    assert (near.readable(), near.writable(), near.seekable()) == (True, True, False)
    assert (near.isatty(), near.closed) == (False, False)
    assert isinstance(near, io.RawIOBase)
    for call in (near.fileno, near.tell):
        with pytest.raises(OSError, match=r"."):
            call()


def test_copyfileobj_copies_both_ways(streams: Joined, spawn: Spawn) -> None:
    data = pattern(600 * KIB, 1)

    def send() -> None:
        with streams.near:
            shutil.copyfileobj(io.BytesIO(data), streams.near)

    sending = spawn(send)
    target = io.BytesIO()
    shutil.copyfileobj(streams.far, target)
    sending.result(WAIT)
    assert target.getvalue() == data


def test_gzip_compresses_into_a_stream_and_out_of_it(streams: Joined, spawn: Spawn) -> None:
    data = pattern(100 * KIB, 2) * 5

    def send() -> None:
        with streams.near, gzip.GzipFile(fileobj=streams.near, mode="wb") as packed:
            packed.write(data)

    sending = spawn(send)
    with gzip.GzipFile(fileobj=streams.far, mode="rb") as packed:
        assert packed.read() == data
    sending.result(WAIT)


def test_tar_files_stream_through(streams: Joined, spawn: Spawn) -> None:
    contents = {f"file-{n}": pattern(n * 30 * KIB, n) for n in range(5)}

    def send() -> None:
        with streams.near, tarfile.open(fileobj=streams.near, mode="w|gz") as archive:
            for name, data in contents.items():
                record = tarfile.TarInfo(name)
                record.size = len(data)
                archive.addfile(record, io.BytesIO(data))

    sending = spawn(send)
    with tarfile.open(fileobj=streams.far, mode="r|gz") as archive:
        files = ((record.name, archive.extractfile(record)) for record in archive)
        received = {name: file.read() for name, file in files if file is not None}
    sending.result(WAIT)
    assert received == contents


def test_csv_rows_pass_as_text(streams: Joined) -> None:
    rows = [["a", "b"], ["1,5", 'say "hi"'], ["line\nbreak", "ü"]]
    with streams.near.makefile("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows(rows)
    with streams.far.makefile("r", encoding="utf-8", newline="") as source:
        assert list(csv.reader(source)) == rows


def test_pickles_follow_each_other(streams: Joined) -> None:
    values = [{"n": 1}, list(range(1000)), pattern(50 * KIB, 4), None]
    with streams.near.makefile("wb") as out:
        for value in values:
            pickle.dump(value, out)
    with streams.far.makefile("rb") as source:
        assert [pickle.load(source) for _ in values] == values
        with pytest.raises(EOFError):
            pickle.load(source)


def test_lines_can_be_iterated_without_a_buffer(streams: Joined) -> None:
    streams.near.write(b"one\ntwo\nthree")
    streams.near.close_write()
    assert list(streams.far) == [b"one\n", b"two\n", b"three"]


def test_text_lines_can_be_iterated(streams: Joined) -> None:
    with streams.near.makefile("w", encoding="utf-8") as out:
        out.writelines(["eins\n", "zwei\n"])
    with streams.far.makefile("r", encoding="utf-8") as source:
        assert [line.rstrip() for line in source] == ["eins", "zwei"]


def test_readinto_fills_as_much_as_there_is(streams: Joined) -> None:
    streams.near.write(b"12345")
    streams.near.close_write()
    target = bytearray(3)
    assert streams.far.readinto(target) == 3
    assert target == b"123"
    assert streams.far.readinto(target) == 2
    assert target[:2] == b"45"
    assert streams.far.readinto(target) == 0


def test_readinto_takes_any_shape_of_buffer(streams: Joined) -> None:
    streams.near.write(bytes(range(12)))
    target = memoryview(bytearray(12)).cast("B", (3, 4))
    assert streams.far.readinto(target) == 12
    assert target.tobytes() == bytes(range(12))


def test_readall_joins_everything_up_to_the_end(streams: Joined) -> None:
    for n in range(10):
        streams.near.write(bytes([n]) * 100)
    streams.near.close_write()
    assert streams.far.readall() == b"".join(bytes([n]) * 100 for n in range(10))


@pytest.mark.parametrize("size", [-1, None])
def test_read_without_a_size_reads_to_the_end(streams: Joined, size: int | None) -> None:
    streams.near.write(b"to the ")
    streams.near.write(b"end")
    streams.near.close_write()
    assert streams.far.read(size) == b"to the end"


def test_a_read_of_nothing_returns_nothing(streams: Joined) -> None:
    streams.near.write(b"x")
    assert streams.far.read(0) == b""
    assert streams.far.readinto(bytearray()) == 0
    assert streams.far.read(1) == b"x"


def test_a_buffered_pair_asks_and_answers(streams: Joined, spawn: Spawn) -> None:
    def answer() -> None:
        with io.BufferedRWPair(streams.far, streams.far) as file:
            for line in iter(file.readline, b""):
                file.write(line.upper())
                file.flush()

    answering = spawn(answer)
    with streams.near.makefile("rwb") as file:
        for word in (b"one\n", b"two\n"):
            file.write(word)
            file.flush()
            assert file.readline() == word.upper()
    answering.result(WAIT)


def test_closing_a_file_flushes_it_and_closes_the_stream(streams: Joined) -> None:
    file = streams.near.makefile("wb")
    file.write(b"buffered")
    file.close()
    assert streams.near.closed
    assert streams.far.read() == b"buffered"


def test_an_answer_is_read_after_a_file_was_flushed_and_the_writing_half_ended(
    streams: Joined, spawn: Spawn
) -> None:
    def answer() -> None:
        with streams.far:
            streams.far.write(streams.far.read().upper())

    answering = spawn(answer)
    with streams.near:
        rows = streams.near.makefile("w", encoding="utf-8", newline="")
        csv.writer(rows).writerow(["a", "b"])
        rows.flush()
        streams.near.close_write()
        assert streams.near.read() == b"A,B\r\n"
    answering.result(WAIT)


def test_pyarrow_reads_batches_from_a_file_however_the_bytes_come(
    streams: Joined, spawn: Spawn
) -> None:
    arrow = pytest.importorskip("pyarrow")
    batch = arrow.record_batch({"n": list(range(1000))})
    packed = io.BytesIO()
    with arrow.ipc.new_stream(packed, batch.schema) as writer:
        writer.write_batch(batch)

    data = packed.getvalue()

    def send() -> None:
        with streams.near as out:
            for start in range(0, len(data), 777):
                out.write(data[start : start + 777])

    sending = spawn(send)
    with streams.far.makefile("rb") as file, arrow.ipc.open_stream(file) as reader:
        assert reader.read_all().to_batches() == [batch]
    sending.result(WAIT)


@pytest.mark.parametrize("buffering", [1, 16, 100 * KIB])
def test_the_buffer_size_can_be_chosen(streams: Joined, buffering: int) -> None:
    with streams.near.makefile("wb", buffering) as out:
        for n in range(100):
            out.write(bytes([n]))
    with streams.far.makefile("rb", buffering) as source:
        assert source.read() == bytes(range(100))


@pytest.mark.parametrize("mode", ["", "b", "t", "a", "x", "r+", "rbt", "wtb"])
def test_a_mode_that_makes_no_sense_is_refused(streams: Joined, mode: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        streams.near.makefile(mode)


@pytest.mark.parametrize("mode", ["rb", "wb", "rwb", "r", "wt"])
def test_a_file_without_a_buffer_is_the_stream_itself(streams: Joined, mode: str) -> None:
    with pytest.raises(ValueError, match="for unbuffered bytes use the stream itself"):
        streams.near.makefile(mode, buffering=0)


def test_text_may_be_asked_for_as_open_takes_it(streams: Joined) -> None:
    with streams.near.makefile("wt", encoding="utf-8") as out:
        out.write("één\n")
    with streams.far.makefile("rt", encoding="utf-8") as source:
        assert source.read() == "één\n"


def test_a_file_over_a_reset_stream_ends_as_the_stream_does(streams: Joined) -> None:
    streams.near.reset(99)
    file = streams.far.makefile("rb")
    check_read_of_reset(streams.far, lambda: file.read(1), code=99)
    streams.far.close()


TYPES = """
import io
from typing import Any, assert_type

import wsmux


def check(stream: wsmux.Stream, mode: str) -> None:
    for file in (stream.makefile(), stream.makefile("rwb"), stream.makefile("bwr", 100)):
        assert_type(file, io.BufferedRWPair)
    for reader in (stream.makefile("rb"), stream.makefile("br", buffering=100)):
        assert_type(reader, io.BufferedReader)
        assert_type(reader.read(), bytes)
    for writer in (stream.makefile("wb"), stream.makefile("bw")):
        assert_type(writer, io.BufferedWriter)
    text = stream.makefile("r", encoding="utf-8", newline="", errors="strict")
    assert_type(text.readline(), str)
    with stream.makefile("w", 100, line_buffering=True) as lines:
        lines.write("text")
    assert_type(stream.makefile("rt").readline(), str)
    assert_type(stream.makefile("rwt", encoding="utf-8"), io.TextIOWrapper)
    stream.makefile("rw", write_through=True).write("text")
    assert_type(stream.makefile(mode, encoding="utf-8"), Any)
"""

WRONG = {
    "bytes in text": ('stream.makefile("w").write(b"bytes")', "[arg-type]"),
    "text in bytes": ('stream.makefile("wb").write("text")', "[arg-type]"),
    "no such method": ('stream.makefile("wb").send()', "[attr-defined]"),
    "no such option": ('stream.makefile("r", encodign="utf-8")', "[call-overload]"),
}


def mypy(text: str, place: Path, cache: Path) -> str:
    """Return what mypy complains of in a module."""
    (place / "checked.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent"]
    command += ["--cache-dir", str(cache), "checked.py"]
    root = str(Path(wsmux.__file__).parent.parent)
    environment = {**os.environ, "MYPYPATH": root}
    run = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    return "" if run.returncode == 0 else run.stdout + run.stderr


def test_mypy_knows_the_file_of_each_mode_and_finds_wrong_uses(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    # What it knows of the package is kept for the next run, where pytest keeps anything.
    kept = getattr(pytestconfig, "cache", None)
    cache = tmp_path / "cache" if kept is None else Path(kept.mkdir("mypy"))
    uses = "".join(f"    {use}\n" for use, _ in WRONG.values())
    first = TYPES.count("\n") + 1
    found = mypy(TYPES + uses, tmp_path, cache)
    for line, (_, complaint) in enumerate(WRONG.values(), first):
        assert re.search(rf"checked.py:{line}: error: .*{re.escape(complaint)}", found), found
    lines = {int(line) for line in re.findall(r"checked.py:(\d+): error", found)}
    assert min(lines) >= first, found
