"""``wsmux exec`` as a user runs it, through ``wsmux serve --exec``."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Iterator

import pytest

from ..helpers.commands import PATIENCE, command, run, run_here, served
from ..helpers.programs import needs
from ..helpers.tunnel_server import served_by, tunnels

DATA = random.Random(9).randbytes(1_234_567)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    needs("sh", "cat")
    with served("--exec", "sh", "--exec", "cat") as address:
        yield address


def test_stdin_and_stdout_are_the_commands(url: str) -> None:
    done = run("exec", url, "--", "cat", data=DATA)
    assert (done.returncode, done.stdout, done.stderr) == (0, DATA, b"")


def test_stderr_and_the_exit_status_are_the_commands(url: str) -> None:
    done = run_here("exec", "-d", url, "--", "sh", "-c", "echo out; echo err >&2; exit 42")
    assert (done.returncode, done.stdout, done.stderr) == (42, b"out\n", b"err\n")


def test_a_command_that_a_signal_ended_tells_which(url: str) -> None:
    assert run_here("exec", "-d", url, "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_a_command_need_not_read_its_stdin(url: str) -> None:
    assert run_here("exec", url, "--", "sh", "-c", "exit 3", data=DATA).returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on(url: str, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo caught; exit 5' {name}; echo ready; while :; do sleep 0.01; done"
    process = subprocess.Popen(
        command("exec", "-d", url, "--", "sh", "-c", script), stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.stdout.read() == b"caught\n"
    assert process.wait(PATIENCE) == 5
    process.stdout.close()


def test_a_second_interrupt_ends_it_here(url: str) -> None:
    script = "trap 'echo caught' INT; echo ready; while :; do sleep 0.01; done"
    process = subprocess.Popen(
        command("exec", "-d", url, "--", "sh", "-c", script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"caught\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, b"")


@pytest.mark.parametrize(
    ("program", "words"), [("ls", b"not on the list"), ("no-such-program", b"not on the list")]
)
def test_a_program_that_is_not_allowed_fails_in_one_line(
    url: str, program: str, words: bytes
) -> None:
    done = run_here("exec", url, "--", program)
    assert (done.returncode, done.stdout) == (1, b"")
    assert words in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_where_commands_are_not_enabled_it_fails_in_one_line() -> None:
    with tunnels(connect=["127.0.0.1:80"]) as server:
        done = run_here("exec", server.url, "--", "cat")
    assert done.returncode == 1
    assert done.stderr == b"wsmux exec: commands are not allowed here (403 not allowed)\n"


def test_a_lost_connection_is_no_success() -> None:
    with tunnels(programs=["cat"]) as server:
        process = subprocess.Popen(
            command("exec", server.url, "--", "cat"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        assert process.stdout.read(1) == b"x"
        served_by(server).abort()
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert errors.startswith(b"wsmux exec: ")
    assert errors.count(b"\n") == 1
