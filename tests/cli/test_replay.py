"""Have ``wsmux replay`` run recordings against handlers, as a user would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wsmux.cli.main import main

from ..helpers.commands import run
from ..helpers.replay_handlers import conversation
from ..helpers.wires import NAMES

HANDLERS = "tests.helpers.replay_handlers"
CONNECTIONS = ("failing", "serving", "calling", "pinging")  # what takes a connection
WIRES = pytest.mark.parametrize("protocol", NAMES)
CARRIERS = pytest.mark.parametrize("transport", ["websocket", "tcp"])
Told = tuple[int, list[str]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "recording.jsonl"
    path.write_text(conversation())
    return path


def replay(capsys: pytest.CaptureFixture[str], path: Path, handler: str, *arguments: str) -> Told:
    option = "--handler" if handler in CONNECTIONS else "--stream-handler"
    status = main(["replay", str(path), option, f"{HANDLERS}:{handler}", *arguments])
    return status, capsys.readouterr().out.splitlines()


@WIRES
@CARRIERS
def test_the_recorded_handler_answers_as_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, protocol: str, transport: str
) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text(conversation(protocol, transport))
    status, lines = replay(capsys, path, "serving")
    assert (status, lines[:-1]) == (0, [])
    assert lines[-1].endswith("; streams: 3; differences: 0")
    assert replay(capsys, path, "upper")[0] == 0


@WIRES
def test_other_bytes_are_told_stream_by_stream(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, protocol: str
) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text(conversation(protocol))
    status, lines = replay(capsys, path, "lower")
    assert status == 1
    assert len(lines) == 4
    assert all(line.endswith(": byte 0 differs from the recorded one") for line in lines[:3])
    assert lines[3].endswith("; streams: 3; differences: 3")


def test_the_patience_is_that_of_the_command(
    capsys: pytest.CaptureFixture[str], recorded: Path
) -> None:
    status, lines = replay(capsys, recorded, "deaf", "--timeout", "0.05")
    assert status == 1
    assert lines[0].startswith("the handler's side said nothing further where 5 bytes on stream 0")


def test_what_came_of_it_is_told_as_json_too(
    capsys: pytest.CaptureFixture[str], recorded: Path
) -> None:
    status, (line,) = replay(capsys, recorded, "lower", "--json")
    told = json.loads(line)
    assert status == 1
    assert (told["same"], told["streams"], len(told["differences"])) == (False, 3, 3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('"lost_received": 0', '"lost_received": 1'), "begins in the middle"),
        (('"lost_sent": 0', '"lost_sent": 1'), "begins in the middle"),
        (('"raw": "', '"was": "'), "has frame headers only"),
        (('"length": 5', '"length": 6'), "contradicts the frame in it"),
        (('"type": "ACK"', '"type": "CARRIER_PING"'), "contradicts the frame"),
        (('"role": "server"', '"role": "cook"'), "no 'cook' over 'websocket'"),
        (('"carrier": "websocket"', '"carrier": "pigeon"'), "over 'pigeon'"),
        (('"wire": "wsmux"', '"wire": "http"'), "impossible connection: protocol must be one of"),
        (('"config": {}', '"config": {"max_streams": 0}'), "must be above 0"),
        (('"config": {}', '"config": {"nonsense": 0}'), "impossible connection"),
        (('"frames": ', '"frames": 9'), "is truncated"),
        (("{", "["), "not JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_replayed_ends_with_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    recorded: Path,
    change: tuple[str, str],
    why: str,
) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text(recorded.read_text().replace(*change))
    assert main(["replay", str(path), "--stream-handler", f"{HANDLERS}:upper"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"wsmux replay: {path}: ")
    assert why in told.err


def test_a_frame_that_a_plain_socket_cannot_bring_ends_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, recorded: Path
) -> None:
    first = recorded.read_text().splitlines()[0].replace("websocket", "bytes")
    first = json.dumps(json.loads(first) | {"frames": 1})
    facts = {"type": "MALFORMED", "length": 0, "detail": "empty message", "size": 0, "raw": ""}
    path = tmp_path / "recording.jsonl"
    path.write_text(f"{first}\n{json.dumps({'t': 0, 'dir': 'received'} | facts)}\n")
    assert main(["replay", str(path), "--stream-handler", f"{HANDLERS}:upper"]) == 2
    assert "cannot be sent: empty message" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("no_such_module_of_anybody:serve", "No module named 'no_such_module_of_anybody'"),
        (f"{HANDLERS}:no_such", "has no no_such to call"),
        (f"{HANDLERS}:NO_HANDLER", "has no NO_HANDLER to call"),
        (f"{HANDLERS}:wsmux.nothing", "has no wsmux.nothing to call"),
        ("module", "not of the form MODULE:FUNCTION"),
        ("a b:c", "not of the form MODULE:FUNCTION"),
    ],
)
def test_what_is_no_handler_ends_with_2(
    capsys: pytest.CaptureFixture[str], recorded: Path, place: str, why: str
) -> None:
    assert main(["replay", str(recorded), "--handler", place]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert why in told.err


def test_a_handler_is_found_where_the_command_runs(tmp_path: Path, recorded: Path) -> None:
    (tmp_path / "app.py").write_text("def echo(stream): stream.write(stream.readall().upper())\n")
    arguments = ("replay", "-", "--stream-handler", "app:echo")
    done = run(*arguments, data=recorded.read_bytes(), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"frames fed: ")
