"""What holds for every subcommand: exit status, stdout for data, stderr for talk."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys

import pytest

import wsmux
from wsmux.cli.addresses import url
from wsmux.cli.main import guarded, main

from ..helpers.commands import command, run, run_here


def test_version_goes_to_stdout() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.decode() == f"wsmux {wsmux.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["serve"],
        ["serve", "--echo", "--sink"],
        ["cat"],
        ["cat", "http://127.0.0.1/"],
        ["cat", "ws://"],
        ["cat", "--timeout", "0", "ws://127.0.0.1/"],
        ["cat", "--timeout", "soon", "ws://127.0.0.1/"],
        ["cat", "--timeout", "inf", "ws://127.0.0.1/"],
        ["cat", "ws://["],
        ["cat", "ws://127.0.0.1:99999/"],
        ["cat", "ws://127.0.0.1:0/"],
        ["cat", "tcp://127.0.0.1/"],
        ["cat", "tcp://127.0.0.1:1/path"],
        ["cat", "--header", "no colon", "ws://127.0.0.1/"],
        ["cat", "--insecure", "--cafile", "x.pem", "wss://127.0.0.1/"],
        ["cat", "--subprotocol", "a, b", "ws://127.0.0.1/"],
        ["cat", "--subprotocol", "none", "tcp://127.0.0.1:1"],
        ["serve", "--echo", "--allow-forward", "h:80"],
        ["serve", "--echo", "--origin", "https://*.example.org"],
        ["serve", "--open", "--exec", "sh"],
        ["serve", "--allow-forward", "nonsense"],
        ["serve", "--allow-listen", "h:0"],
        ["serve", "--exec", "no-such-program"],
        ["forward", "ws://127.0.0.1/"],
        ["forward", "ws://127.0.0.1/", "-L", "80"],
        ["forward", "ws://127.0.0.1/", "-R", "80:h:0"],
        ["forward", "ws://127.0.0.1/", "--socks", "x"],
        ["exec", "ws://127.0.0.1/"],
        ["exec", "http://127.0.0.1/", "ls"],
        ["exec", "--subprotocol", "none", "tcp://127.0.0.1:1", "ls"],
        ["forward", "--subprotocol", "none", "tcp://127.0.0.1:1", "-L", "1:h:1"],
        ["serve", "--open", "--uploads", "folder"],
        ["serve", "--echo", "--uploads", "folder"],
        ["serve", "--uploads", "folder", "--host", "0.0.0.0"],
        ["serve", "--uploads", "folder", "--exec", "sh"],
        ["upload"],
        ["upload", "file"],
        ["upload", "file", "http://127.0.0.1/"],
        ["upload", "no-such-file", "ws://127.0.0.1/"],
        ["upload", "--timeout", "0", "file", "ws://127.0.0.1/"],
        ["bridge"],
        ["bridge", "--to", "http://127.0.0.1/"],
        ["bridge", "--to", "ws://127.0.0.1/", "--listen", "ws://127.0.0.1"],
        ["bridge", "--to", "ws://127.0.0.1/", "--listen", "ws://127.0.0.1:99999"],
        ["bridge", "--to", "ws://127.0.0.1/", "--to-protocol", "http"],
        ["bridge", "--to", "tcp://127.0.0.1:1", "--to-subprotocol", "none"],
        ["bridge", "--to", "ws://h/", "--to-subprotocol", "x", *(["--to-protocol", "yamux"] * 2)],
        ["top"],
        ["top", "ws://127.0.0.1/"],
        ["top", "http://"],
        ["top", "-5"],
        ["top", "--once", "999999999"],
        ["top", "--interval", "0", "http://127.0.0.1/"],
        ["doctor"],
        ["doctor", "http://127.0.0.1/"],
        ["doctor", "--idle", "0", "ws://127.0.0.1/"],
        ["doctor", "--subprotocol", "none", "tcp://127.0.0.1:1"],
        ["inspect"],
        ["inspect", "--protocol", "http", "-"],
        ["inspect", "--stream", "first", "-"],
        ["replay", "recording.jsonl"],
        ["replay", "recording.jsonl", "--handler", "module"],
        ["replay", "recording.jsonl", "--handler", "a:b", "--stream-handler", "a:b"],
        ["tables"],
        ["tables", "optimize", "ws://127.0.0.1/"],
        ["tables", "optimize", "--target-size", "0", "ws://127.0.0.1/", "d"],
        ["tables", "vacuum", "--retention", "a week", "ws://127.0.0.1/", "d"],
        ["tables", "history", "--limit", "0", "ws://127.0.0.1/", "d"],
        ["tables", "history", "http://127.0.0.1/", "d"],
        ["serve-data", "--auto-optimize", "1", "directory"],
        ["demo", "--limit", "0"],
        ["demo", "--server", "apache"],
        ["bench", "--repetitions", "0"],
        ["bench", "--seconds", "-1"],
        ["bench", "http://127.0.0.1/"],
        ["bench", "--local", "ws://127.0.0.1/"],
        ["bench", "--protocol", "spdy"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_says_why_on_stderr(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "wsmux" in told.err


@pytest.mark.parametrize("address", ["ws://h/a b", "ws://h/a\r\nX-Y: z", "wss://h/\0"])
@pytest.mark.parametrize("name", ["doctor", "cat", "forward", "exec"])
def test_an_address_that_would_end_a_head_is_wrong_usage(
    name: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, address]) == 2
    assert "a character that URLs cannot have" in capsys.readouterr().err


@pytest.mark.parametrize("header", ["A: secret\nB: c", "secret", "A secret: b", "A: secret\0"])
def test_a_header_that_none_can_be_is_wrong_usage_and_not_shown(
    header: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "ws://h/", "--header", header]) == 2
    told = capsys.readouterr().err
    assert "--header: " in told
    assert "secret" not in told


def test_a_scheme_in_capitals_is_taken() -> None:
    assert (url("WSS://Host/X"), url("TCP://h:1")) == ("wss://Host/X", "tcp://h:1")


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--echo", "--keyfile", "key.pem"],
        ["serve", "--echo", "--tcp", "--protocol", "yamux", "--protocol", "bymux"],
        ["cat", "--header", "A: b", "tcp://127.0.0.1:1"],
        ["bridge", "--to", "tcp://127.0.0.1:1", "--header", "A: b"],
        ["doctor", "--header", "A: b", "tcp://127.0.0.1:1"],
        ["bridge", "--to", "ws://127.0.0.1/", "--listen", "wss://127.0.0.1:0"],
        ["bridge", "--to", "ws://127.0.0.1/", "--certfile", "chain.pem", "--keyfile", "key.pem"],
        ["bench", "--header", "A: b", "tcp://127.0.0.1:1"],
        ["cat", "--resume", "--insecure", "tcp://127.0.0.1:1"],
        ["exec", "--resume", "--subprotocol", "none", "ws://127.0.0.1:1", "--", "true"],
    ],
    ids=" ".join,
)
def test_usage_that_is_found_wrong_later_ends_with_2_too(arguments: list[str]) -> None:
    done = run_here(*arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(f"wsmux {arguments[0]}: ".encode())
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name",
    ["serve", "cat", "bridge", "doctor", "inspect", "replay", "rpc", "tables", "demo", "bench"],
)
def test_help_names_every_subcommand(name: str) -> None:
    assert name in run_here("--help").stdout.decode()
    done = run_here(name, "--help")
    assert done.returncode == 0
    assert f"usage: wsmux {name}" in done.stdout.decode()


def last_line_of(program: str) -> str:
    """Run a program in a Python of its own; return the last line that it prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return done.stdout.decode().splitlines()[-1]


def test_the_command_line_imports_no_optional_package() -> None:
    program = (
        "import sys; from wsmux.cli.main import main; main(['--version']); "
        "print(sorted({'flask', 'gunicorn', 'msgpack', 'rich', 'tqdm'} & set(sys.modules)))"
    )
    assert last_line_of(program) == "[]"


def test_a_subcommand_imports_no_other_one() -> None:
    program = (
        "import sys; from wsmux.cli.main import COMMANDS, main; main(['serve', '--help']); "
        "print([name for name in COMMANDS if f'wsmux.cli.{name}' in sys.modules])"
    )
    assert last_line_of(program) == "['serve']"


def test_a_reader_of_stdout_that_goes_away_causes_no_traceback() -> None:
    process = subprocess.Popen(
        command("serve", "--echo"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"Traceback" not in errors
    assert b"Exception ignored" not in errors


@pytest.mark.parametrize(
    ("scheme", "arguments"),
    [
        ("ws", ["cat", "URL"]),
        ("tcp", ["cat", "URL"]),
        ("ws", ["cat", "--no-stdin", "URL"]),
        ("ws", ["exec", "URL", "--", "ls"]),
        ("ws", ["forward", "URL", "-L", "0:127.0.0.1:9"]),
        ("ws", ["rpc", "schema", "URL"]),
        ("ws", ["bench", "URL"]),
        ("tcp", ["bench", "URL"]),
        ("http", ["top", "--once", "URL"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_server_that_is_not_there_is_named_with_what_to_check(
    scheme: str, arguments: list[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{free.getsockname()[1]}/"
        done = run_here(*(url if word == "URL" else word for word in arguments))
    told = done.stderr.decode()
    assert done.returncode == 1
    assert told.startswith(f"wsmux {arguments[0]}: cannot connect to {url}")
    assert told.endswith(": Connection refused; is the server running, and is that its port?\n")


@pytest.mark.parametrize(
    ("signal_error", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)]
)
def test_a_failure_while_a_signal_ends_the_command_has_the_status_of_the_signal(
    signal_error: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: argparse.Namespace) -> int:
        try:
            raise signal_error
        finally:
            raise wsmux.ConnectionClosedError(1006, "a call was interrupted", "local")

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert guarded("wsmux cat", run, argparse.Namespace(verbose=0)) == status
    assert capsys.readouterr().err == ""
