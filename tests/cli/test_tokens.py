"""Who may connect to ``wsmux serve``, and how its clients say that they may."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import wsmux
from wsmux.cli.addresses import add_connecting, add_token, headers
from wsmux.cli.main import main
from wsmux.cli.terminal import CommandError
from wsmux.cli.tokens import MAX_FILE, VARIABLE, token, tokens

from ..helpers.commands import PATIENCE, command, run, run_here, running, served
from ..helpers.ports import free_port
from ..helpers.raw_peer import read_head, request
from ..helpers.tunnel_server import Echo, connected, receive_all

TOKEN = "a-token-of-the-tests"

TUNNELS = (["--exec", "cat"], ["--allow-forward", "*:80"], ["--allow-listen", "*:80"])


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file with the token, for its owner alone."""
    return written(tmp_path, f"{TOKEN}\n")


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(text.encode())
    path.chmod(mode)
    return path


def refused(path: Path | None) -> str:
    with pytest.raises(CommandError) as caught:
        token(path)
    assert caught.value.status == 2
    return str(caught.value)


# Where tokens come from


@pytest.mark.parametrize("text", [TOKEN, f"{TOKEN}\n", f"{TOKEN}\r\n", f"\n  {TOKEN}\n\n"])
def test_a_file_holds_a_token_without_its_line_end(tmp_path: Path, text: str) -> None:
    assert token(written(tmp_path, text)) == TOKEN


@pytest.mark.parametrize("text", ["", "\n", " \r\n \n"])
def test_a_file_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    assert "holds no token" in refused(written(tmp_path, text))


@pytest.mark.parametrize("text", ["two words", "t\u00f6k", "a\x01b", "a\x0cb"])
def test_what_fits_no_header_is_refused(tmp_path: Path, text: str) -> None:
    words = refused(written(tmp_path, text))
    assert "visible ASCII" in words
    assert text not in words


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602, 0o777])
def test_a_file_that_others_have_access_to_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, TOKEN, mode)
    assert f"(mode {mode:o}): chmod 600 {path}" in refused(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_its_owner_alone_is_read(tmp_path: Path, mode: int) -> None:
    assert token(written(tmp_path, TOKEN, mode)) == TOKEN


def test_a_file_of_another_user_is_not_judged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o644)
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    assert token(path) == TOKEN


def test_a_token_may_come_through_a_pipe() -> None:
    reading, writing = os.pipe()
    with open(writing, "wb") as file:
        file.write(f"{TOKEN}\n".encode())
    with open(reading, "rb"):
        assert token(Path(f"/dev/fd/{reading}")) == TOKEN


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    assert f"the {MAX_FILE} bytes" in refused(written(tmp_path, "x" * (MAX_FILE + 1)))


def test_the_file_goes_before_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert token(None) == ""
    monkeypatch.setenv(VARIABLE, "another")
    assert (token(None), token(path)) == ("another", TOKEN)


def test_a_server_knows_several_tokens_of_which_a_client_sends_one(tmp_path: Path) -> None:
    path = written(tmp_path, "one\ntwo\n")
    assert tokens(path) == ["one", "two"]
    assert "holds several tokens" in refused(path)


# What a client sends


def sent(address: str, *arguments: str) -> list[str] | None:
    parser = argparse.ArgumentParser()
    add_connecting(parser)
    add_token(parser)
    return headers(parser.parse_args(arguments), address)


def test_a_token_goes_as_a_header(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent("ws://h/") is None
    wanted = ["X-A: b", f"Authorization: Bearer {TOKEN}"]
    assert sent("wss://h/", "--header", "X-A: b", "--token-file", str(path)) == wanted
    monkeypatch.setenv(VARIABLE, TOKEN)
    assert sent("wss://h/", "--header", "X-A: b") == wanted


def test_a_header_of_its_own_goes_before_the_environment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "another")
    own = "authorization: Basic eA=="
    assert sent("ws://h/", "--header", own) == [own]
    with pytest.raises(CommandError, match="which --header gives too"):
        sent("ws://h/", "--header", own, "--token-file", str(path))


def test_a_plain_socket_takes_no_token(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="takes no --token-file"):
        sent("tcp://h:1", "--token-file", str(path))
    monkeypatch.setenv(VARIABLE, TOKEN)  # meant for others
    assert sent("tcp://h:1") is None


@pytest.mark.parametrize(
    "command",
    [
        ["serve", "--echo"],
        ["cat", "ws://127.0.0.1:1/"],
        ["exec", "ws://127.0.0.1:1/", "cat"],
        ["forward", "ws://127.0.0.1:1/", "--socks", "0"],
        ["doctor", "ws://127.0.0.1:1/"],
        ["top", "--once", "http://127.0.0.1:1/"],
    ],
    ids=lambda command: str(command[0]),
)
def test_every_command_minds_who_has_access_to_its_tokens(
    not_serving: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    path = written(tmp_path, TOKEN, 0o644)
    assert main([command[0], "--token-file", str(path), *command[1:]]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert f"chmod 600 {path}" in told.err


# Serving


@pytest.fixture
def not_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(*args: object, **options: object) -> None:
        raise AssertionError("it would listen")

    monkeypatch.setattr(wsmux, "serve", serve)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "", "example.org", "127.1"])
@pytest.mark.parametrize("offered", TUNNELS, ids=lambda options: options[0])
@pytest.mark.parametrize("plain", [[], ["--tcp"]], ids=["ws", "tcp"])
def test_tunnels_for_other_machines_need_a_token(
    not_serving: None,
    capsys: pytest.CaptureFixture[str],
    host: str,
    offered: list[str],
    plain: list[str],
) -> None:
    assert main(["serve", *offered, *plain, "--host", host]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "give --token-file or WSMUX_TOKEN" in told.err
    assert ("instead of --tcp" in told.err) == bool(plain)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize("offered", [*TUNNELS, ["--echo"]], ids=lambda options: options[0])
def test_a_plain_socket_and_a_token_exclude_each_other(
    not_serving: None,
    capsys: pytest.CaptureFixture[str],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    offered: list[str],
) -> None:
    command = ["serve", *offered, "--tcp", "--host", host]
    assert main([*command, "--token-file", str(path)]) == 2
    assert "no request that could carry a token" in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, TOKEN)
    assert main(command) == 2
    assert "--tcp or WSMUX_TOKEN, not both" in capsys.readouterr().err


def test_tunnels_without_a_token_are_not_for_the_pages_of_everybody(
    not_serving: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--exec", "cat", "--origin", "*"]) == 2
    assert "every page" in capsys.readouterr().err


def test_an_empty_token_file_serves_nobody(
    not_serving: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = written(tmp_path, "\n")
    assert main(["serve", "--exec", "cat", "--token-file", str(path)]) == 2
    assert "holds no token" in capsys.readouterr().err


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve ``cat`` and ports of loopback, at all addresses, to those with one of two tokens."""
    path = written(tmp_path_factory.mktemp("tokens"), f"another\n{TOKEN}\n")
    arguments = ["--host", "0.0.0.0", "--token-file", str(path), "--exec", "cat"]
    with served(*arguments, "--allow-forward", "127.0.0.1:*") as url:
        yield url.replace("0.0.0.0", "127.0.0.1")


def test_exec_sends_the_token_of_a_file_or_the_environment(guarded: str, path: Path) -> None:
    done = run_here("exec", "--token-file", str(path), guarded, "--", "cat", data=b"hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hello", b"")
    environment = {**os.environ, VARIABLE: "another"}
    assert run("exec", guarded, "--", "cat", data=b"hello", env=environment).stdout == b"hello"


@pytest.mark.parametrize("given", ["", "a-token-of-others"])
def test_without_the_right_token_a_client_fails_in_one_line(guarded: str, given: str) -> None:
    environment = {**os.environ, VARIABLE: given}
    done = run("exec", guarded, "--", "cat", data=b"hello", env=environment)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"answered 401" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_forward_sends_the_token(guarded: str, path: Path) -> None:
    with (
        Echo() as echo,
        running("forward", guarded, "--token-file", str(path), "-L", f"0:{echo.place}") as line,
        connected(line.split()[1]) as sock,
    ):
        sock.sendall(b"there and back")
        sock.shutdown(socket.SHUT_WR)
        assert receive_all(sock) == b"there and back"


def test_doctor_sends_the_token(guarded: str, path: Path) -> None:
    done = run_here("doctor", "--idle", "0.1", "--token-file", str(path), guarded)
    assert done.returncode == 0, done.stdout
    assert b"both name wsmux.v1" in done.stdout


def test_what_is_not_for_tunnels_may_have_a_token_too(path: Path) -> None:
    with served("--echo", "--token-file", str(path)) as url:
        assert run_here("cat", "--token-file", str(path), url, data=b"hello").stdout == b"hello"
        assert b"answered 401" in run_here("cat", url, data=b"hello").stderr


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 101),
        ("http://127.0.0.1:{port}", 101),
        ("http://localhost:{port}", 101),
        ("http://evil.example:{port}", 403),  # a page that had its name resolve to this machine
        ("https://evil.example", 403),
    ],
)
def test_on_loopback_no_page_of_elsewhere_reaches_what_is_served(
    bare: int, origin: str | None, status: int
) -> None:
    origin = None if origin is None else origin.format(port=bare)
    host = "127.0.0.1" if origin is None else origin.partition("//")[2]
    with socket.create_connection(("127.0.0.1", bare), PATIENCE) as sock:
        sock.sendall(request(host, {"Origin": origin}))
        assert read_head(sock)[0].startswith(f"HTTP/1.1 {status} ")


@pytest.fixture(
    scope="module",
    params=[
        ("serve", "--exec", "cat"),
        ("serve", "--send", __file__),
        ("bridge", "--to", "tcp://127.0.0.1:{free}"),
    ],
    ids=["exec", "send", "bridge"],
)
def bare(request: pytest.FixtureRequest) -> Iterator[int]:
    """Serve on loopback without a token; return the port."""
    with running(*(each.format(free=free_port()) for each in request.param)) as url:
        yield int(url.rpartition(":")[2])


def test_a_bridge_for_other_machines_says_so() -> None:
    program = command("bridge", "--listen", "ws://0.0.0.0:0", "--to", "tcp://127.0.0.1:1")
    process = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert "0.0.0.0 can be reached from other machines" in told
    assert process.returncode == 130
