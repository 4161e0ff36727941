"""``wsmux serve`` and ``wsmux cat``, against each other."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import wsmux

from ..helpers.certificates import Certificates
from ..helpers.commands import PATIENCE, command, run, run_here, served
from ..helpers.ports import free_port

# More than a window, so that credit must come back, and no multiple of anything.
DATA = random.Random(7).randbytes(1_234_567)


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with served("--echo", "--protocol", "wsmux", "--protocol", "js-ws") as url:
        yield url


def test_cat_brings_back_what_an_echo_server_got(echo: str) -> None:
    done = run("cat", echo, data=DATA)
    assert (done.returncode, done.stderr) == (0, b"")
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(DATA).digest()


def test_cat_speaks_js_ws(echo: str) -> None:
    # Half a window is acknowledged to its last byte; the end of less is held back for seconds.
    data = DATA[: wsmux.Config().receive_window // 2]
    assert run_here("cat", echo, "--protocol", "js-ws", data=data).stdout == data


def test_cat_with_nothing_to_send_ends(echo: str) -> None:
    done = run_here("cat", echo)
    assert (done.returncode, done.stdout) == (0, b"")


def test_cat_answers_before_stdin_ends(echo: str) -> None:
    process = subprocess.Popen(
        command("cat", echo), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one")
    assert process.stdout.read(3) == b"one"
    process.stdin.write(b"two")
    assert process.stdout.read(3) == b"two"
    process.stdin.close()
    assert process.stdout.read() == b""
    assert process.wait(PATIENCE) == 0
    process.stdout.close()


def test_cat_shows_the_progress_of_a_file_when_asked(echo: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        done = run("cat", "--progress", echo, stdin=file)
    assert done.returncode == 0
    assert done.stdout == DATA
    assert "100%" in done.stderr.decode()


def test_cat_shows_no_bar_unasked_when_stderr_is_no_terminal(echo: str) -> None:
    assert run_here("cat", echo, data=b"x").stderr == b""


def test_progress_without_tqdm_names_what_to_install(echo: str) -> None:
    done = run("cat", "--progress", echo, data=b"x", without=("tqdm",))
    assert done.returncode == 1
    assert b"pip install 'wsmux-streams[cli]'" in done.stderr


def test_cat_works_without_tqdm(echo: str) -> None:
    assert run("cat", echo, data=b"x", without=("tqdm", "rich")).stdout == b"x"


def test_cat_on_a_terminal_ends_when_the_server_does(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    ours, terminal = pty.openpty()
    with served("--send", str(path)) as url:
        done = run("cat", url, stdin=terminal)
    assert (done.returncode, done.stdout) == (0, DATA)
    os.close(ours)
    os.close(terminal)


def test_a_file_is_sent_to_each_stream(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    with served("--send", str(path)) as url:
        assert run_here("cat", "-d", url).stdout == DATA
        with_bar = run("cat", "--no-stdin", "--progress", url)
    assert with_bar.stdout == DATA
    assert b"1.18MB" in with_bar.stderr


def test_a_sink_answers_nothing() -> None:
    with served("--sink") as url:
        done = run_here("cat", url, data=DATA)
    assert (done.returncode, done.stdout) == (0, b"")


def test_listen_takes_a_stream_that_the_server_opens() -> None:
    with served("--echo", "--open") as url:
        done = run_here("cat", "--listen", url, data=DATA)
    assert (done.returncode, done.stdout) == (0, DATA)


def test_serve_tells_url_and_port_in_json() -> None:
    with served("--echo", "--json") as line:
        told = json.loads(line)
        assert run_here("cat", told["url"], data=b"x").stdout == b"x"
        assert told["url"].endswith(str(told["port"]))


def test_serve_refuses_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_here("serve", "--echo", "--port", str(taken.getsockname()[1]))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"in use" in done.stderr


def test_serve_refuses_a_file_that_is_not_there() -> None:
    done = run_here("serve", "--send", "/no/such/file")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"/no/such/file" in done.stderr


def test_serve_ends_on_sigterm_with_143() -> None:
    process = subprocess.Popen(command("serve", "--echo"), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 143
    process.stdout.close()


def test_verbose_tells_of_each_stream_on_stderr(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("serve", "--echo", "-v"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    run_here("cat", process.stdout.readline().strip(), data=b"five!")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert "5 bytes sent back" in errors


# Failures


def test_cat_without_a_server_fails_in_one_line() -> None:
    port = free_port()
    done = run_here("cat", f"ws://127.0.0.1:{port}/")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"wsmux cat: ")


def test_cat_gives_up_a_silent_server_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = run_here("cat", "--timeout", "0.3", f"ws://127.0.0.1:{listener.getsockname()[1]}/")
    assert done.returncode == 1
    assert b"time" in done.stderr


def test_cat_gives_up_a_silent_stream_in_time() -> None:
    silent = threading.Event()
    with wsmux.serve(stream_handler=lambda stream: silent.wait()) as server:
        done = run_here("cat", "-d", "--timeout", "0.3", server.url)
        silent.set()
    assert done.returncode == 1
    assert b"timed out" in done.stderr


def test_cat_is_not_idle_while_it_sends(tmp_path: Path) -> None:
    process_input, ours = os.pipe()
    with served("--sink") as url:
        process = subprocess.Popen(command("cat", "--timeout", "2", url), stdin=process_input)
        os.close(process_input)
        for _ in range(4):
            os.write(ours, b"x")
            threading.Event().wait(0.6)  # real time, together more than the timeout
        os.close(ours)
        assert process.wait(PATIENCE) == 0


def test_cat_fails_when_the_stream_is_reset() -> None:
    with wsmux.serve(stream_handler=lambda stream: stream.reset(99)) as server:
        done = run_here("cat", server.url, data=DATA)
    assert done.returncode == 1
    assert b"99" in done.stderr


def test_cat_sends_headers() -> None:
    seen: list[str] = []

    def handle(connection: wsmux.Connection) -> None:
        assert connection.request is not None
        seen.extend(connection.request.headers.get(name, "") for name in ("x-one", "x-two"))
        for stream in connection:
            stream.close()

    with wsmux.serve(handle) as server:
        run_here("cat", "--header", "X-One: 1", "--header", "X-Two: 2", server.url)
    assert seen == ["1", "2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_cat_cleanly(number: signal.Signals) -> None:
    arrived, ended = threading.Event(), threading.Event()

    def handle(connection: wsmux.Connection) -> None:
        stream = connection.accept_stream()
        stream.read(1)  # so that the command is past its start
        arrived.set()
        with pytest.raises(wsmux.StreamReset):
            stream.read()
        ended.set()
        connection.wait_closed(PATIENCE)

    with wsmux.serve(handle) as server:
        process = subprocess.Popen(
            command("cat", server.url),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # An exception from a signal may leave the lock of coverage itself held.
            env={name: text for name, text in os.environ.items() if not name.startswith("COV")},
        )
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        assert arrived.wait(PATIENCE)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
        assert ended.wait(PATIENCE)
        _, errors = process.communicate()
    assert errors == b""


# TLS


@pytest.fixture
def tls(certificates: Certificates) -> tuple[Path, list[str]]:
    """Return the file of an authority, and what makes a server use a certificate of it."""
    files = ["--certfile", str(certificates.chain), "--keyfile", str(certificates.key)]
    return certificates.authority, files


def test_cat_trusts_the_authority_it_is_told_of(tls: tuple[Path, list[str]]) -> None:
    authority, files = tls
    with served("--echo", *files) as url:
        assert url.startswith("wss://")
        done = run_here("cat", "--cafile", str(authority), url, data=DATA)
        assert (done.returncode, done.stdout) == (0, DATA)


def test_cat_refuses_an_unknown_certificate_unless_insecure(tls: tuple[Path, list[str]]) -> None:
    with served("--echo", *tls[1]) as url:
        refused = run_here("cat", url, data=b"x")
        assert (refused.returncode, refused.stdout) == (1, b"")
        assert b"certificate" in refused.stderr.lower()
        assert run_here("cat", "--insecure", url, data=b"x").stdout == b"x"
