"""A remote command has its three streams, its signals and its exit code, and outlives nobody."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux.runtime.deadline import Deadline
from wsmux.tunnel import RemoteProcess, TunnelError, TunnelServer, programs
from wsmux.tunnel.exchange import ask
from wsmux.tunnel.request_head import Request
from wsmux.tunnel.spawning import Spawned

from ..helpers.programs import needs
from ..helpers.scripted import WAIT
from ..helpers.tunnel_server import tunnels
from ..helpers.waiting import wait_for

DATA = random.Random(4).randbytes(1_234_567)

SHELL = shutil.which("sh") or "/bin/sh"


@pytest.fixture
def server() -> Iterator[wsmux.Server]:
    needs("sh", "cat")
    with tunnels(programs=["sh", "cat", SHELL]) as running:
        yield running


@pytest.fixture
def client(server: wsmux.Server) -> Iterator[wsmux.Connection]:
    with wsmux.connect(server.url) as connection:
        yield connection


def started(connection: wsmux.Connection, *argv: str) -> RemoteProcess:
    process = RemoteProcess(connection, argv, timeout=WAIT)
    process.stdio.timeout = process.stderr.timeout = WAIT
    return process


def shell(connection: wsmux.Connection, script: str, *arguments: str) -> RemoteProcess:
    return started(connection, "sh", "-c", script, "sh", *arguments)


def test_bytes_pass_through_stdin_and_stdout(client: wsmux.Connection) -> None:
    with started(client, "cat") as process, ThreadPoolExecutor(1) as sender:
        sent = sender.submit(lambda: (process.stdio.write(DATA), process.stdio.close_write()))
        assert process.stdio.read() == DATA
        sent.result(WAIT)
        assert process.wait(WAIT) == 0
        assert process.wait(0) == 0


def test_a_command_ends_where_its_process_is_reaped_by_the_system() -> None:
    """An application may ignore SIGCHLD, or inherit that; as in ``subprocess``, the code is 0."""
    needs("sh")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with (
            tunnels(programs=["sh"], max_tunnels=4) as server,
            wsmux.connect(server.url) as connection,
        ):
            for _ in range(3):  # of which each needs three of the four places
                with shell(connection, "echo out") as process:
                    assert process.stdio.read() == b"out\n"
                    assert process.wait(WAIT) == 0
            with shell(connection, "sleep 600") as process:
                process.send_signal("KILL")
                assert process.wait(WAIT) == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_signal_that_comes_before_the_command_has_started_is_sent_then(
    client: wsmux.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    class Noted(dict[str, int]):
        def __getitem__(self, name: str) -> int:
            asked.set()
            return super().__getitem__(name)

    def late(*arguments: Any) -> Spawned:
        assert asked.wait(WAIT)
        return Spawned(*arguments)

    monkeypatch.setattr(programs, "SIGNALS", Noted(programs.SIGNALS))
    monkeypatch.setattr(programs, "Spawned", late)
    with shell(client, "sleep 600") as process:
        process.send_signal("KILL")
        assert process.wait(WAIT) == -signal.SIGKILL


def test_stderr_and_the_exit_code_come_apart(client: wsmux.Connection) -> None:
    with shell(client, "echo out; echo err >&2; exit 7") as process:
        assert process.stdio.read() == b"out\n"
        assert process.stderr.read() == b"err\n"
        assert process.wait(WAIT) == 7


def test_arguments_arrive_as_they_are(client: wsmux.Connection) -> None:
    arguments = ["", "a b", "ü€", "*", "$HOME", "x\ny", "%41", "\udcff"]
    with shell(client, 'printf "%s|" "$@"', *arguments) as process:
        expected = b"|".join(os.fsencode(argument) for argument in arguments) + b"|"
        assert process.stdio.read() == expected
        assert process.wait(WAIT) == 0


def test_a_command_gets_a_small_environment(
    client: wsmux.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "secret")
    with shell(client, "env") as process:
        names = {line.partition(b"=")[0] for line in process.stdio.read().splitlines()}
    assert b"PATH" in names
    assert b"SECRET_TOKEN" not in names


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "KILL"])
def test_a_signal_ends_the_command(client: wsmux.Connection, name: str) -> None:
    with shell(client, "echo ready; exec cat") as process:
        assert process.stdio.read(6) == b"ready\n"
        process.send_signal(name)
        assert process.wait(WAIT) == -getattr(signal, f"SIG{name}")


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM"])
def test_a_signal_that_the_server_ignores_ends_the_command_all_the_same(
    client: wsmux.Connection, name: str
) -> None:
    kind = getattr(signal, f"SIG{name}")
    before = signal.signal(kind, signal.SIG_IGN)  # as nohup and a script's & have it
    try:
        with shell(client, "echo ready; exec sleep 60") as process:
            assert process.stdio.read(6) == b"ready\n"
            process.send_signal(name)
            assert process.wait(WAIT) == -kind
    finally:
        signal.signal(kind, before)


def test_a_command_may_handle_a_signal(client: wsmux.Connection) -> None:
    script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    with shell(client, script) as process:
        assert process.stdio.read(6) == b"ready\n"
        process.send_signal("TERM")
        assert process.stdio.read(7) == b"caught\n"
        assert process.wait(WAIT) == 3


def test_a_signal_that_is_none_is_refused_here(client: wsmux.Connection) -> None:
    with started(client, "cat") as process, pytest.raises(ValueError, match="SEGV"):
        process.send_signal("SEGV")


def test_a_command_that_reads_no_further_stops_the_writer(client: wsmux.Connection) -> None:
    with shell(client, "exec 0<&-; echo deaf; exec sleep 30") as process:
        assert process.stdio.read(5) == b"deaf\n"
        with pytest.raises(wsmux.StreamWriteClosed):
            write_on(process.stdio)


def write_on(stream: wsmux.Stream) -> None:
    while True:
        stream.write(bytes(10_000))


def test_a_client_that_reads_no_further_breaks_the_commands_pipe(client: wsmux.Connection) -> None:
    with shell(client, "while echo y; do :; done 2>/dev/null; exit 9") as process:
        assert process.stdio.read(2) == b"y\n"
        process.stdio.close_read()
        assert process.wait(WAIT) in (9, -signal.SIGPIPE)


@pytest.mark.parametrize("how", ["abort", "close"])
def test_a_command_whose_client_is_gone_is_killed(
    server: wsmux.Server, tmp_path: Path, how: str
) -> None:
    connection = wsmux.connect(server.url)
    process = shell(connection, "sleep 60 & echo $$ $!; wait")
    ids = [int(word) for word in process.stdio.read(100).split()]
    getattr(connection, how)()
    wait_for(lambda: not any(alive(number) for number in ids))


def alive(number: int) -> bool:
    """Return whether a process runs; a zombie that another parent has yet to reap does not."""
    try:
        status = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status not in "ZX"


def test_leaving_the_block_kills_what_runs(client: wsmux.Connection) -> None:
    with shell(client, "echo $$; exec cat") as process:
        number = int(process.stdio.read(100))
        assert alive(number)
    wait_for(lambda: not alive(number))


def test_a_reset_of_one_stream_kills_the_command(client: wsmux.Connection) -> None:
    process = shell(client, "echo $$; exec cat")
    number = int(process.stdio.read(100))
    process.stdio.reset()
    wait_for(lambda: not alive(number))
    process.close()


def test_a_client_that_reads_nothing_cannot_keep_a_command(client: wsmux.Connection) -> None:
    process = shell(client, "echo $$ >&2; exec cat /dev/zero")
    number = int(process.stderr.read(100))
    process._control.reset()
    wait_for(lambda: not alive(number))
    process.close()


def test_a_grandchild_that_keeps_the_pipes_is_waited_for(client: wsmux.Connection) -> None:
    with shell(client, "(read line; echo $line) <&3 3<&- & exit 4", "x") as process:
        process.stdio.close_write()
        process.stdio.read()
        assert process.wait(WAIT) == 4


@pytest.mark.parametrize("line", [b"SEGV\n", b"x" * 100, b"\xff\n", b"\n"])
def test_a_client_that_talks_nonsense_loses_its_command(
    client: wsmux.Connection, line: bytes
) -> None:
    with started(client, "cat") as process:
        process._control.write(line)
        with pytest.raises(wsmux.StreamReset):
            process.stdio.read()


def test_many_at_once_are_told_apart(client: wsmux.Connection) -> None:
    with ThreadPoolExecutor(8) as pool:

        def code(number: int) -> int:
            with shell(client, f"exit {number}") as process:
                return process.wait(WAIT)

        assert list(pool.map(code, range(8))) == list(range(8))


# Refusals


def test_a_program_that_is_not_allowed_is_refused(client: wsmux.Connection) -> None:
    for name in ("ls", "/bin/ls", "./sh", "../bin/sh", "sh "):
        with pytest.raises(TunnelError) as caught:
            started(client, name.strip() + "x" * (name == "sh "))
        assert caught.value.status == 403


def test_a_command_without_a_program_is_refused(client: wsmux.Connection) -> None:
    with pytest.raises(ValueError, match="^argv is empty: name a program$"):
        started(client)


def test_more_commands_than_allowed_are_refused(
    client: wsmux.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tunnels(programs=["cat"]) as server, wsmux.connect(server.url) as connection:
        running = [started(connection, "cat") for _ in range(programs.MAX_PROCESSES)]
        with pytest.raises(TunnelError) as caught:
            started(connection, "cat")
        assert caught.value.status == 503
        for process in running:
            process.close()


def test_a_stranger_with_the_token_is_refused(
    server: wsmux.Server, client: wsmux.Connection
) -> None:
    control = client.open_stream(WAIT)
    token = ask(control, Request("EXEC", "cat"), Deadline(WAIT))
    with wsmux.connect(server.url) as stranger:
        stream = stranger.open_stream(WAIT)
        with stream, pytest.raises(TunnelError) as caught:
            ask(stream, Request("STDIO", token), Deadline(WAIT))
    assert caught.value.status == 403
    control.reset()


def test_a_stream_is_attached_once(client: wsmux.Connection) -> None:
    control = client.open_stream(WAIT)
    token = ask(control, Request("EXEC", "cat"), Deadline(WAIT))
    with client.open_stream() as first, client.open_stream() as second:
        ask(first, Request("STDIO", token), Deadline(WAIT))
        with pytest.raises(TunnelError) as caught:
            ask(second, Request("STDIO", token), Deadline(WAIT))
        assert caught.value.status == 400
    control.reset()


def test_a_client_that_opens_no_further_streams_is_given_up(
    client: wsmux.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "HEAD_TIMEOUT", 1.0)
    control = client.open_stream(WAIT)
    token = ask(control, Request("EXEC", "cat"), Deadline(WAIT))
    control.timeout = WAIT
    with client.open_stream() as stream:
        ask(stream, Request("STDIO", token), Deadline(WAIT))
        stream.timeout = WAIT
        with pytest.raises(wsmux.StreamReset):
            control.read()
        with pytest.raises(wsmux.StreamReset):
            stream.read()


def test_a_program_that_cannot_start_is_told(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF, but not really")
    path.chmod(0o755)
    with (
        tunnels(programs=[str(path)]) as server,
        wsmux.connect(server.url) as connection,
        started(connection, str(path)) as process,
        pytest.raises(TunnelError, match="format"),
    ):
        process.wait(WAIT)


@pytest.mark.parametrize("name", ["no-such-program", "/no/such/program", "./sh", "/", ""])
def test_what_is_no_program_cannot_be_allowed(name: str) -> None:
    with pytest.raises(ValueError, match="is no program"):
        TunnelServer(programs=[name])


@pytest.mark.parametrize("line", [b"", b"exit\n", b"exit x\n", b"done 0\n", b"x" * 2000])
def test_a_server_that_does_not_say_how_it_ended_is_no_success(line: bytes) -> None:
    def serve(stream: wsmux.Stream) -> None:
        head = stream.read(1000)
        stream.write(b"HTTP/1.1 200 token\r\n\r\n")
        if head.startswith(b"EXEC"):
            stream.write(line)
            stream.close_write()
        stream.read()

    with (
        wsmux.serve(stream_handler=serve) as server,
        wsmux.connect(server.url) as connection,
        started(connection, "cat") as process,
        pytest.raises(TunnelError, match="how the command ended"),
    ):
        process.wait(WAIT)
