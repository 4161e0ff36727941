"""The bytes of a task arrive once, whatever ends and however many attempts there are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux.durable import DurableHandler, DurableRefused, ReceivedStream, Refusal
from wsmux.spark import Recipe, SparkError, connection, upload_bytes
from wsmux.testing import FaultProxy

from ...helpers.durable import Sink, pattern
from ...helpers.ports import free_port
from ...helpers.raw_peer import in_thread
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for

PIECE = 10_000
DATA = pattern(0, 50 * PIECE)


def pieces(data: bytes = DATA) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]


def recipe(url: str, **options: Any) -> Recipe:
    return connection(url, **{"retry_backoff": 0.01, "call_timeout": WAIT} | options)


@contextmanager
def serving(
    handle: Callable[[ReceivedStream], object], offsets: Any, port: int = 0, **options: Any
) -> Iterator[wsmux.Server]:
    handler = DurableHandler(handle, offsets=offsets)
    with wsmux.serve(stream_handler=handler, port=port, **options) as server:
        yield server


@pytest.fixture
def files(tmp_path: Path) -> wsmux.FileOffsets:
    return wsmux.FileOffsets(tmp_path / "in")


@pytest.fixture
def server(files: wsmux.FileOffsets) -> Iterator[wsmux.Server]:
    with serving(files.receive, files) as made:
        yield made


def broken(error: Exception, after: int, data: bytes = DATA) -> Iterator[bytes]:
    """Yield some pieces and fail."""
    for place, piece in enumerate(pieces(data)):
        if place == after:
            raise error
        yield piece


def code_of(conn: Recipe, chunks: Iterable[bytes], **options: Any) -> str:
    """Return with which code an upload fails."""
    with pytest.raises(SparkError) as caught:
        upload_bytes(conn, "a", chunks, **options)
    return caught.value.code


# Once


def test_bytes_become_a_file(server: wsmux.Server, tmp_path: Path) -> None:
    assert upload_bytes(recipe(server.url), "a", pieces()) == len(DATA)
    assert (tmp_path / "in/a").read_bytes() == DATA


def test_no_bytes_become_an_empty_file(server: wsmux.Server, tmp_path: Path) -> None:
    assert upload_bytes(recipe(server.url), "a", [b"", b""]) == 0
    assert (tmp_path / "in/a").read_bytes() == b""


def test_a_task_that_runs_again_sends_nothing_twice() -> None:
    sink = Sink()
    with serving(sink.handle, sink) as server:
        for _ in range(2):
            assert upload_bytes(recipe(server.url), "a", pieces()) == len(DATA)
    assert sink.data["a"] == DATA
    assert sink.calls == [0, len(DATA)]


def test_another_attempt_goes_on_where_the_first_one_stood() -> None:
    sink = Sink()
    with serving(sink.handle, sink) as server:
        with pytest.raises(OSError, match="the disk of the task"):
            upload_bytes(recipe(server.url), "a", broken(OSError("the disk of the task"), 7))
        assert upload_bytes(recipe(server.url), "a", [DATA[:33_333], DATA[33_333:]]) == len(DATA)
    assert sink.data["a"] == DATA
    assert len(sink.calls) == 2  # an error of the task's own is not tried again


def test_a_buffer_that_is_filled_again_is_kept_as_it_was() -> None:
    """What the first handler has not committed is sent again."""
    sink, first = Sink(), [True]

    def handle(stream: ReceivedStream) -> None:
        if first and first.pop():
            stream.read(1)
            raise RuntimeError("the first handler fails")
        sink.handle(stream)

    def reused() -> Iterator[memoryview]:
        buffer = bytearray(PIECE)
        for piece in pieces():
            buffer[:] = piece
            yield memoryview(buffer)

    with serving(handle, sink) as server:
        upload_bytes(recipe(server.url), "a", reused())
    assert sink.data["a"] == DATA


def test_a_handler_behind_a_named_stream(files: wsmux.FileOffsets, tmp_path: Path) -> None:
    from wsmux.spark.server.named_streams import NamedStreams

    handler = DurableHandler(files.receive, offsets=files)
    streams = NamedStreams({"files": lambda stream, header: handler(stream)}, WAIT)
    with wsmux.serve(stream_handler=streams) as server:
        upload_bytes(recipe(server.url), "a", pieces(), stream="files")
        assert code_of(recipe(server.url), [], stream="b") == "NO_STREAM"
    assert (tmp_path / "in/a").read_bytes() == DATA


# What ends meanwhile


def test_a_lost_connection_is_resumed_where_the_server_does(
    files: wsmux.FileOffsets, tmp_path: Path
) -> None:
    calls: list[int] = []

    def handle(stream: ReceivedStream) -> None:
        calls.append(stream.offset)
        files.receive(stream)

    with (
        serving(handle, files, resume=True) as server,
        FaultProxy(server.port) as proxy,
    ):
        conn = recipe(f"ws://127.0.0.1:{proxy.port}")

        def cut_once() -> Iterator[bytes]:
            for place, piece in enumerate(pieces()):
                if place == 20:
                    proxy.cut("rst")
                yield piece

        upload_bytes(conn, "a", cut_once())
        assert conn.streams().stats().reconnects == 1
        conn.link().close()  # or the server waits for its return
    assert calls == [0]
    assert (tmp_path / "in/a").read_bytes() == DATA


@pytest.mark.parametrize("resume", [False, True], ids=["plain", "resumable"])
def test_another_server_goes_on_where_the_one_before_stood(
    files: wsmux.FileOffsets, tmp_path: Path, resume: bool
) -> None:
    """What the first one has received and not committed is sent again."""
    port, offsets, following = free_port(), [], []
    more = threading.Event()

    def handle(stream: ReceivedStream) -> None:
        offsets.append(stream.offset)
        files.receive(stream)

    def replaced() -> Iterator[bytes]:
        for place, piece in enumerate(pieces()):
            if place == 20:
                more.set()
                old.shutdown(0)
                following.append(new := serving(handle, files, port, resume=resume))
                new.__enter__()
            yield piece

    with serving(handle, files, port, resume=resume) as old:
        upload_bytes(recipe(f"ws://127.0.0.1:{port}"), "a", replaced())
    following[0].__exit__(None, None, None)
    assert (tmp_path / "in/a").read_bytes() == DATA
    assert len(offsets) == 2


# Two attempts at once


def test_the_older_of_two_attempts_finds_the_work_of_the_newer_one(
    server: wsmux.Server, tmp_path: Path
) -> None:
    stopped, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        for place, piece in enumerate(pieces()):
            if place == 20:
                stopped.set()
                assert go_on.wait(WAIT)
            yield piece

    older = recipe(server.url)
    thread = in_thread(lambda: upload_bytes(older, "a", slow()))
    assert stopped.wait(WAIT)
    # Another executor, which has a connection of its own.
    assert upload_bytes(recipe(server.url, retries=2), "a", pieces()) == len(DATA)
    go_on.set()
    assert thread.result(WAIT) == len(DATA)
    assert (tmp_path / "in/a").read_bytes() == DATA


# What is refused


def test_other_bytes_are_dropped_by_their_digest(server: wsmux.Server, tmp_path: Path) -> None:
    """Those of an attempt that is not repeatable; the next attempt then sends its own."""
    conn = recipe(server.url)
    with pytest.raises(RuntimeError, match="ends"):
        upload_bytes(conn, "a", broken(RuntimeError("ends"), 7, bytes(len(DATA))))
    wait_for(lambda: part_length(tmp_path) == 7 * PIECE)
    assert code_of(conn, pieces()) == "DIGEST"
    assert upload_bytes(conn, "a", pieces()) == len(DATA)
    assert (tmp_path / "in/a").read_bytes() == DATA


def part_length(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "in").glob("*.part"))


def test_fewer_bytes_than_the_server_has_are_refused(server: wsmux.Server) -> None:
    upload_bytes(recipe(server.url), "a", pieces())
    assert code_of(recipe(server.url), pieces(DATA[:-1])) == "OTHER_DATA"
    assert code_of(recipe(server.url), [DATA, b"1"]) == "EXISTS"


def test_a_server_that_has_lost_what_it_committed_is_told_of() -> None:
    sink = Sink()
    lost = threading.Event()

    def handle(stream: ReceivedStream) -> None:
        if lost.is_set():
            return sink.handle(stream)
        sink.data["a"] = bytearray(stream.read(PIECE))
        stream.commit()
        sink.kept.clear()
        lost.set()
        raise DurableRefused(Refusal.BUSY, "come again")

    def chunks() -> Iterator[bytes]:
        for place, piece in enumerate(pieces()):
            if place == 1:
                assert lost.wait(WAIT)
            yield piece

    with serving(handle, sink) as server:
        assert code_of(recipe(server.url), chunks()) == "DATA_LOST"


@pytest.mark.parametrize(
    ("kind", "times"), [(Refusal.NO_SPACE, 3), (Refusal.FAILED, 3), (Refusal.TOO_LARGE, 1)]
)
def test_only_what_may_pass_is_tried_again(kind: Refusal, times: int) -> None:
    calls: list[str] = []

    def handle(stream: ReceivedStream) -> None:
        calls.append(stream.name)
        raise DurableRefused(kind, "for a test")

    with serving(handle, Sink()) as server:
        conn = recipe(server.url, retries=2)
        assert code_of(conn, pieces()) == kind.name
    assert len(calls) == times


def test_what_is_kept_is_bounded() -> None:
    """Nothing is committed, so no more is read of the task than is to be kept."""
    taken: list[bytes] = []

    def noted(chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            taken.append(chunk)
            yield chunk

    with serving(lambda stream: stream.read(), Sink()) as server:
        conn = recipe(server.url, retries=0)
        assert code_of(conn, noted(pieces()), buffer=3 * PIECE, timeout=1.0) == "TIMEOUT"
    assert len(taken) == 4


def test_an_error_shows_a_name_without_its_control_characters(server: wsmux.Server) -> None:
    with pytest.raises(SparkError, match=r"upload 'a\\nb\\x1b'") as caught:
        upload_bytes(recipe(server.url), "a\nb\x1b", [])
    assert caught.value.code == "NAME"
    assert str(caught.value).isprintable()


def test_wrong_arguments_are_refused(server: wsmux.Server) -> None:
    conn = recipe(server.url)
    with pytest.raises(ValueError, match="buffer must be at least 1"):
        upload_bytes(conn, "a", [], buffer=0)
    with pytest.raises(ValueError, match="durable name"):
        upload_bytes(conn, "", [])
    with pytest.raises(TypeError, match="bytes-like"):
        upload_bytes(conn, "a", ["text"])
