"""``wsmux upload`` sends files to ``wsmux serve --uploads`` and to routes of Flask."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from pathlib import Path

import pytest
from flask import Flask

import wsmux
from wsmux.durable import DurableHandler, FileOffsets, ReceivedStream
from wsmux.flask import Mux
from wsmux.flask import uploads as flask_uploads

from ..helpers.commands import PATIENCE, command, run, run_here, served
from ..helpers.durable import MemoryOffsets
from ..helpers.ports import free_port
from ..helpers.timeouts import WAIT
from ..helpers.werkzeug_server import serving

DATA = random.Random(8).randbytes(3_000_001)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "photos.tar.gz"
    path.write_bytes(DATA)
    return path


def test_a_file_arrives_and_is_named(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    with served("--uploads", str(folder)) as url:
        done = run("upload", str(file), url)
        assert (done.returncode, done.stderr) == (0, b"")
        name = done.stdout.decode().strip()
        assert name.startswith("photos-")
        assert name.endswith(".tar.gz")
        assert (folder / name).read_bytes() == DATA
        again = run_here("upload", str(file), url)
        assert again.stdout.decode().strip() == name
        file.write_bytes(DATA[:-1])
        other = run_here("upload", str(file), url)
        assert other.stdout.decode().strip() != name
        assert (folder / name).read_bytes() == DATA


def test_the_server_prints_the_path_of_each_file(file: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("serve", "--uploads", str(tmp_path)), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        try:
            url = process.stdout.readline().strip()
            assert run_here("upload", str(file), url, "--name", "a").returncode == 0
            assert process.stdout.readline() == f"{tmp_path / 'a'}\n"
        finally:
            process.kill()


def test_a_name_that_another_file_has_is_refused(file: Path, tmp_path: Path) -> None:
    with served("--uploads", str(tmp_path / "in")) as url:
        assert run_here("upload", str(file), url, "--name", "a").returncode == 0
        file.write_bytes(b"changed")
        done = run_here("upload", str(file), url, "--name", "a")
    assert done.returncode == 1
    assert done.stderr.decode().startswith("wsmux upload: the receiver refuses the durable stream")
    assert "there is a file 'a', which stays" in done.stderr.decode()
    assert (tmp_path / "in" / "a").read_bytes() == DATA


def test_a_bar_is_shown_when_asked(file: Path, tmp_path: Path) -> None:
    with served("--uploads", str(tmp_path / "in")) as url:
        done = run("upload", "--progress", str(file), url)
    assert done.returncode == 0
    assert "100%" in done.stderr.decode()


def test_a_server_that_is_away_is_waited_for(file: Path, tmp_path: Path) -> None:
    port = free_port()
    process = subprocess.Popen(
        command("upload", str(file), f"ws://127.0.0.1:{port}", "--name", "a"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process:
        try:
            assert process.stderr.readline().endswith("; trying again\n")
            with served("--uploads", str(tmp_path / "in"), "--port", str(port)):
                assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert (tmp_path / "in" / "a").read_bytes() == DATA


def test_a_server_that_stays_away_is_given_up(file: Path) -> None:
    done = run_here("upload", "--timeout", "0.2", str(file), f"ws://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert b"wsmux upload: cannot connect to" in done.stderr


def test_a_server_that_takes_no_uploads_is_told_apart_at_once(file: Path) -> None:
    with served("--echo") as url:
        done = run_here("upload", str(file), url)
    assert done.returncode == 1
    assert b"a receiver of durable streams answers with" in done.stderr
    assert b"trying again" not in done.stderr


def test_uploads_from_other_machines_need_a_token(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    done = run("serve", "--uploads", str(folder), "--host", "0.0.0.0")
    assert done.returncode == 2
    assert b"give --token-file" in done.stderr
    assert not folder.exists()


@pytest.mark.parametrize("change", ["touched", "cut"])
def test_a_file_that_changes_meanwhile_is_told_of(file: Path, change: str) -> None:
    def handle(stream: ReceivedStream) -> None:
        if change == "cut":
            os.truncate(file, 1000)
        else:
            os.utime(file, (1, 1))
        while stream.read(65536):
            pass

    handler = DurableHandler(handle, offsets=MemoryOffsets())
    config = wsmux.Config(receive_window=65536)  # less than the file, so that it is read later
    with wsmux.serve(stream_handler=handler, config=config) as server:
        done = run_here("upload", str(file), server.url)
    assert done.returncode == 1
    words = "became shorter while" if change == "cut" else "has changed while"
    assert words in done.stderr.decode()


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda path: None, "does not exist"), (os.mkfifo, "is not a regular file")],
    ids=["missing", "pipe"],
)
def test_only_files_are_uploaded(make: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    make(path)  # type: ignore[operator]
    done = run_here("upload", str(path), "ws://127.0.0.1:1")
    assert done.returncode == 2
    assert words in done.stderr.decode()


# The same by Flask


def test_a_route_receives_files(file: Path, tmp_path: Path) -> None:
    app, finished = Flask("uploads"), list[tuple[Path, str]]()
    mux = flask_uploads(
        app,
        "/uploads/<user>",
        tmp_path / "in",
        finished=lambda path, user: finished.append((path, user)),
    )
    with serving(app) as port:
        url = f"ws://127.0.0.1:{port}/uploads/ann"
        assert run_here("upload", str(file), url, "--name", "a").returncode == 0
        mux.shutdown(WAIT)
    assert finished == [(tmp_path / "in" / "a", "ann")]
    assert finished[0][0].read_bytes() == DATA


def test_a_route_of_a_mux_has_its_bounds(file: Path, tmp_path: Path) -> None:
    app = Flask("uploads")
    mux = Mux(app)
    assert flask_uploads(mux, "/in", tmp_path / "in", max_size=1000) is mux
    with serving(app) as port:
        done = run_here("upload", str(file), f"ws://127.0.0.1:{port}/in")
        mux.shutdown(WAIT)
    assert done.returncode == 1
    assert "1000 are allowed" in done.stderr.decode()


def test_a_finished_file_is_told_of_again_if_that_failed(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, calls = Flask("uploads"), list[Path]()
    called = threading.Event()

    def finished(path: Path) -> None:
        calls.append(path)
        if not called.is_set():
            called.set()
            raise ZeroDivisionError("no database")

    mux = flask_uploads(app, "/in", tmp_path / "in", finished=finished)
    with serving(app) as port:
        done = run_here("upload", str(file), f"ws://127.0.0.1:{port}/in", "--name", "a")
        mux.shutdown(WAIT)
    assert done.returncode == 0
    assert calls == [tmp_path / "in" / "a"] * 2
    assert "no database" in caplog.text


def test_file_offsets_are_usable_without_flask(file: Path, tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path / "in")
    handler = DurableHandler(offsets.receive, offsets=offsets)
    with wsmux.serve(stream_handler=handler) as server:
        assert run_here("upload", str(file), server.url, "--name", "a").returncode == 0
    assert (tmp_path / "in" / "a").read_bytes() == DATA
