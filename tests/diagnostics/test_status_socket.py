"""Publish connections to the same user over a Unix socket."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.diagnostics import status_socket
from wsmux.diagnostics.status_socket import LiveSocket, socket_path

from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have temporary files of the test alone; names of Unix sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="w") as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


@pytest.fixture
def server() -> Iterator[wsmux.Connection]:
    client, server = wsmux.pair()
    with client, server:
        yield server


def seen(path: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as looking:
        looking.settimeout(WAIT)
        looking.connect(str(path))
        return json.loads(b"".join(iter(lambda: looking.recv(65536), b"")))


def test_who_connects_is_told_of_the_connections(server: wsmux.Connection) -> None:
    with LiveSocket(server, stalled_after=2.5) as published:
        for _ in range(2):
            told = seen(published.path)
    assert [each["name"] for each in told["connections"]] == [server.name]
    assert (told["process"], told["stalled_after"]) == (os.getpid(), 2.5)


def test_who_connects_is_told_of_sessions_too(server: wsmux.Connection) -> None:
    with (
        rpc.serve([rpc.Service("test")]) as river,
        rpc.connect(river.url, client_id="c") as client,
        LiveSocket([server, river]) as published,
    ):
        client.wait_connected(WAIT)
        told = seen(published.path)
    assert [each["name"] for each in told["connections"]] == [server.name]
    assert [each["client_id"] for each in told["sessions"]] == ["c"]


def test_the_socket_is_for_the_user_alone_and_goes_away(
    server: wsmux.Connection, directory: Path
) -> None:
    with LiveSocket(server) as published:
        assert published.path == socket_path(os.getpid(), os.getuid())
        assert published.path.parent.parent == directory
        assert published.path.parent.stat().st_mode & 0o777 == 0o700
        assert published.path.is_socket()
    assert not published.path.exists()
    published.stop()


def test_a_directory_that_others_enter_is_refused(
    server: wsmux.Connection, directory: Path
) -> None:
    shared = directory / f"wsmux-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o755)
    with pytest.raises(PermissionError, match="must be a directory that only this user can access"):
        LiveSocket(server)
    shared.rmdir()
    shared.symlink_to("/tmp")
    with pytest.raises(PermissionError, match="must be a directory that only this user can access"):
        LiveSocket(server)
    shared.unlink()
    with LiveSocket(server):
        pass


def test_one_process_publishes_once(server: wsmux.Connection) -> None:
    with LiveSocket(server) as published:
        with pytest.raises(RuntimeError, match="already publishes its connections"):
            LiveSocket(server)
        assert seen(published.path)["connections"]


def test_the_socket_of_a_process_that_was_killed_is_replaced(server: wsmux.Connection) -> None:
    path = socket_path(os.getpid(), os.getuid())
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with LiveSocket(server) as published:
        assert seen(published.path)["connections"]


def test_a_name_that_is_too_long_is_an_error_and_leaves_nothing(
    server: wsmux.Connection, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = directory / ("d" * 100)
    deep.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(deep))
        with pytest.raises(OSError, match="too long"):
            LiveSocket(server)
    with LiveSocket(server):
        pass


def test_without_a_thread_nothing_is_published(
    server: wsmux.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            LiveSocket(server)
    assert not socket_path(os.getpid(), os.getuid()).exists()
    with LiveSocket(server):
        pass


def test_who_leaves_early_harms_nobody(server: wsmux.Connection) -> None:
    with LiveSocket(server) as published:
        for _ in range(10):  # fewer than may wait
            with socket.socket(socket.AF_UNIX) as leaving:
                leaving.connect(str(published.path))
        assert seen(published.path)["connections"]


def test_a_failure_to_accept_is_told_and_tried_again(
    server: wsmux.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status_socket, "PAUSE", 0.001)
    failures = iter([OSError(errno.EMFILE, "Too many open files")])
    accept = socket.socket.accept

    def failing(sock: socket.socket) -> Any:
        for failure in failures:
            raise failure
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", failing)
    with LiveSocket(server) as published:
        wait_for(lambda: "Too many open files" in caplog.text)
        assert seen(published.path)["connections"]


def test_what_fails_to_say_its_connections_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> list[wsmux.Connection]:
        raise LookupError("none known")

    with LiveSocket(fail) as published:
        with socket.socket(socket.AF_UNIX) as looking:
            looking.settimeout(WAIT)
            looking.connect(str(published.path))
            assert looking.recv(1) == b""
        wait_for(lambda: "are no longer published" in caplog.text)


def test_a_forked_child_may_publish_its_own(server: wsmux.Connection) -> None:
    with LiveSocket(server) as published:
        child = os.fork()
        if not child:
            published.stop()
            with LiveSocket([]) as own:
                os._exit(0 if seen(own.path)["connections"] == [] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert seen(published.path)["connections"]


@pytest.mark.parametrize("after", [0.0, float("nan")])
def test_the_time_must_be_one(server: wsmux.Connection, after: float) -> None:
    with pytest.raises(ValueError, match="stalled_after must be above 0"):
        LiveSocket(server, stalled_after=after)
