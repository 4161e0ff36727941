"""Uploads between gateways: whole files or errors, and nothing where it does not belong."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import BusError
from wsmux.bus.gateway import upload_receiver, upload_sender, uploads
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.wire.messages import Envelope

from ...helpers.bus.clients import ALICE, BOB, WAIT
from ...helpers.bus.gateway_programs import Caller, Service, database
from ...helpers.bus.gateways import gateway
from ...helpers.bus.inside import uploads_of
from ...helpers.bus.people import Table
from ...helpers.bus.redis_server import RedisServer
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.waiting import wait_for


@pytest.fixture
def sender(server: RedisServer, relay: StageRelay, twins: Table, tmp_path: Path) -> Iterator[Peer]:
    with gateway(server, relay, twins, ALICE, uploads=tmp_path / "ours") as made:
        yield made


@pytest.fixture
def taker(server: RedisServer, relay: StageRelay, twins: Table, tmp_path: Path) -> Iterator[Peer]:
    with gateway(server, relay, twins, BOB, uploads=tmp_path / "theirs") as made:
        yield made


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of several pieces."""
    monkeypatch.setattr(upload_sender, "CHUNK", 1000)
    monkeypatch.setattr(upload_sender, "WINDOW", 3000)
    path = tmp_path / "file"
    path.write_bytes(os.urandom(12_345))
    return path


def kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "theirs").iterdir())


def test_a_file_arrives_and_its_command_is_called(
    sender: Peer, taker: Peer, caller: Caller, server: RedisServer, file: Path, tmp_path: Path
) -> None:
    with Service(database(server, 2), "arrived") as service:
        answer = caller.ask("file.upload", [2], {"path": str(file), "cmd": "arrived"})
        assert answer["err"] is None
        wait_for(lambda: service.requests)
    told = json.loads(base64.b64decode(service.requests[0]["dat"]))
    assert told["id"] == json.loads(answer["dat"])
    assert told["size"] == 12_345
    assert Path(told["path"]).read_bytes() == file.read_bytes()
    assert kept(tmp_path) == [Path(told["path"])]
    assert service.requests[0]["src"] == "1"


def test_an_empty_file_arrives(sender: Peer, taker: Peer, caller: Caller, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert caller.ask("file.upload", [2], {"path": str(empty)})["err"] is None
    assert [path.read_bytes() for path in kept(tmp_path)] == [b""]


def test_uploads_are_off_unless_they_are_wanted(
    alice: Peer, taker: Peer, caller: Caller, file: Path
) -> None:
    answer = caller.ask("file.upload", [2], {"path": str(file)})
    assert "disabled" in answer["err"]["message"]


def test_a_gateway_without_uploads_takes_none(
    sender: Peer, server: RedisServer, relay: StageRelay, twins: Table, caller: Caller, file: Path
) -> None:
    with gateway(server, relay, twins, BOB):
        answer = caller.ask("file.upload", [2], {"path": str(file)})
    assert answer["err"]["message"] == "file uploads are disabled at twin 2"


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"path": "/nowhere/at/all"}, "cannot be read"),
        ({"path": "/"}, "cannot be read|not a regular file"),
        ({"path": "/dev/null"}, "not a regular file"),
        ({"path": "\0"}, "cannot be read"),
        ({"path": "\ud800"}, "cannot be read"),
        ({"path": 5}, "the 'path' of a file"),
        ({}, "the 'path' of a file"),
        ([], "the 'path' of a file"),
        ({"path": __file__, "cmd": 5}, "name of a command"),
    ],
)
def test_what_is_no_file_is_not_sent(sender: Peer, caller: Caller, wish: object, text: str) -> None:
    answer = caller.ask("file.upload", [2], wish)
    assert any(part in answer["err"]["message"] for part in text.split("|"))


@pytest.mark.parametrize(
    ("command", "to", "changes", "text"),
    [
        ("file.upload", [2, 3], {}, "one twin"),
        ("file.write", [2], {}, "no command"),
        ("file.upload", [99], {}, "unknown twin"),
        ("file.upload", [2], {"dat": "e30"}, "base64"),
        ("file.upload", [2], {"dat": "ew=="}, "not JSON"),
    ],
)
def test_a_wrong_wish_is_told(
    sender: Peer,
    caller: Caller,
    command: str,
    to: list[int],
    changes: dict[str, Any],
    text: str,
) -> None:
    assert text in caller.ask(command, to, {"path": __file__}, **changes)["err"]["message"]


def test_a_piece_that_is_lost_fails_the_upload(
    sender: Peer, taker: Peer, caller: Caller, relay: StageRelay, file: Path, tmp_path: Path
) -> None:
    pieces: list[Envelope] = []

    def lose(envelope: Envelope) -> list[Envelope]:
        if envelope.request.command == "file.write":
            pieces.append(envelope)
            if len(pieces) == 12:
                return []
        return [envelope]

    relay.change = lose
    answer = caller.ask("file.upload", [2], {"path": str(file)})
    assert "some were lost" in answer["err"]["message"]
    assert kept(tmp_path) == []


def test_pieces_that_change_places_fail_the_upload(
    sender: Peer, taker: Peer, caller: Caller, relay: StageRelay, file: Path, tmp_path: Path
) -> None:
    pieces: list[Envelope] = []

    def swap(envelope: Envelope) -> list[Envelope]:
        if envelope.request.command != "file.write":
            return [envelope]
        pieces.append(envelope)
        if len(pieces) <= 2:
            return [] if len(pieces) == 1 else pieces[::-1]
        return [envelope]

    relay.change = swap
    answer = caller.ask("file.upload", [2], {"path": str(file)})
    assert "arrived out of order" in answer["err"]["message"]
    assert kept(tmp_path) == []


def test_a_receiver_that_confirms_nothing_is_sent_everything(
    sender: Peer, caller: Caller, relay: StageRelay, twins: Table, file: Path
) -> None:
    sent: list[str] = []

    def take(envelope: Envelope) -> list[Envelope]:
        command = envelope.request.command
        sent.append(command)
        return [] if command in ("file.write", "file.close") else [envelope]

    relay.change = take
    with Client(BOB.identity, relay.url, twins, twin=2, gateway=True) as original:
        original.serve({"file.negotiate": lambda payload: None})
        assert caller.ask("file.upload", [2], {"path": str(file)})["err"] is None
        wait_for(lambda: "file.close" in sent)
    assert sent.count("file.write") == 13


# What a receiver refuses


@pytest.fixture
def thief(relay: StageRelay, twins: Table, taker: Peer) -> Iterator[Client]:
    with Client(ALICE.identity, relay.url, twins, twin=1) as made:
        yield made


def negotiate(client: Client, **changes: Any) -> object:
    body = {"size": 10, "cmd": None} | changes
    return client.call(2, "file.negotiate", body, timeout=WAIT)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": -1},
        {"size": 2**40},
        {"size": "10"},
        {"size": True},
        {"size": None},
        {"cmd": 5},
        {"cmd": "ä"},
        {"cmd": "system.local"},
        {"cmd": "../x"},
        {"cmd": ""},
    ],
)
def test_a_wrong_offer_is_refused(thief: Client, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BusError, match="size|cmd|command"):
        negotiate(thief, **changes)
    assert kept(tmp_path) == []


@pytest.mark.parametrize("command", ["file.write", "file.close", "file.else"])
def test_what_was_not_negotiated_is_refused(thief: Client, command: str) -> None:
    with pytest.raises(BusError, match="negotiate it first"):
        thief.call(2, command, "data", timeout=WAIT)


def test_too_many_uploads_are_refused(
    thief: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(upload_receiver, "MAX_OPEN", 2)
    for _ in range(2):
        assert negotiate(thief) == {"acks": True}
    with pytest.raises(BusError, match="under way"):
        negotiate(thief)
    monkeypatch.setattr(upload_receiver, "IDLE", -1.0)
    negotiate(thief)
    assert len(kept(tmp_path)) == 1


class Receiving:
    """Be an upload without a gateway."""

    def __init__(self, folder: Path) -> None:
        self.receiver = upload_receiver.UploadReceiver(folder)

    def take(self, command: str, payload: bytes, uid: str = "u", twin: int = 1) -> bytes:
        envelope = Envelope(uid=uid)
        envelope.request.command = command
        return self.receiver.take(envelope, upload_receiver.Address(twin), payload)[0]


@pytest.fixture
def receiving(tmp_path: Path) -> Iterator[Receiving]:
    made = Receiving(tmp_path / "theirs")
    yield made
    made.receiver.close()


OFFER = b'{"size": 3}'


def test_nobody_writes_into_the_upload_of_another(receiving: Receiving) -> None:
    receiving.take("file.negotiate", OFFER)
    with pytest.raises(BusError, match="negotiate it first"):
        receiving.take("file.write", b"abc", twin=2)
    assert receiving.take("file.write", b"abc") == b'{"received": 3}'


@pytest.mark.parametrize("uid", ["../../etc/passwd", "/etc/passwd", "", ".", "a\0b"])
def test_no_name_of_another_is_used(receiving: Receiving, tmp_path: Path, uid: str) -> None:
    receiving.take("file.negotiate", OFFER, uid=uid)
    assert [len(path.stem) for path in kept(tmp_path)] == [32]


def test_the_same_upload_is_not_negotiated_twice(receiving: Receiving) -> None:
    receiving.take("file.negotiate", OFFER)
    with pytest.raises(BusError, match="already been negotiated"):
        receiving.take("file.negotiate", OFFER)


def test_more_than_was_agreed_on_ends_the_upload(receiving: Receiving, tmp_path: Path) -> None:
    receiving.take("file.negotiate", OFFER)
    with pytest.raises(BusError, match="agreed on"):
        receiving.take("file.write", b"abcd")
    assert kept(tmp_path) == []


@pytest.mark.parametrize("payload", [b"{", b"[]", b"\xff", b'{"sha256": "00"}', b'{"sha256": 5}'])
def test_a_wrong_end_ends_the_upload(receiving: Receiving, tmp_path: Path, payload: bytes) -> None:
    receiving.take("file.negotiate", OFFER)
    receiving.take("file.write", b"abc")
    with pytest.raises(BusError):
        receiving.take("file.close", payload)
    assert kept(tmp_path) == []


def test_an_end_may_say_nothing(receiving: Receiving, tmp_path: Path) -> None:
    receiving.take("file.negotiate", OFFER)
    receiving.take("file.write", b"abc")
    assert receiving.take("file.close", b"") == b'{"done": true}'
    (path,) = kept(tmp_path)
    assert path.read_bytes() == b"abc"
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_unknown_command_ends_the_upload(receiving: Receiving, tmp_path: Path) -> None:
    receiving.take("file.negotiate", OFFER)
    with pytest.raises(BusError, match="no command"):
        receiving.take("file.rename", b"")
    assert kept(tmp_path) == []


def test_what_is_not_whole_is_removed(tmp_path: Path) -> None:
    first = Receiving(tmp_path / "theirs")
    first.take("file.negotiate", OFFER)
    assert len(kept(tmp_path)) == 1
    first.receiver.close()
    assert kept(tmp_path) == []
    (tmp_path / "theirs" / "left.part").touch()
    Receiving(tmp_path / "theirs")
    assert kept(tmp_path) == []


def test_an_upload_that_a_gateway_left_is_told(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller, file: Path, tmp_path: Path
) -> None:
    with gateway(server, relay, twins, ALICE, uploads=tmp_path / "ours"):
        ret = caller.push("file.upload", [2], {"path": str(file)})
        wait_for(lambda: relay.passed)
    with gateway(server, relay, twins, ALICE):
        assert "restarted" in caller.answer(ret)["err"]["message"]


def test_a_closing_gateway_ends_its_uploads(
    server: RedisServer,
    relay: StageRelay,
    twins: Table,
    caller: Caller,
    taker: Peer,
    file: Path,
    tmp_path: Path,
) -> None:
    relay.change = lambda envelope: [] if envelope.request.command == "file.write" else [envelope]
    with gateway(server, relay, twins, ALICE, uploads=tmp_path / "ours"):
        ret = caller.push("file.upload", [2], {"path": str(file)})
        wait_for(lambda: any(each.request.command == "file.write" for each in relay.passed))
    assert "closed" in caller.answer(ret)["err"]["message"]


def test_uploads_that_nobody_answers_make_room(
    sender: Peer, caller: Caller, relay: StageRelay, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_JOBS", 1)
    relay.change = lambda envelope: []
    caller.push("file.upload", [2], {"path": str(file)}, exp=2)
    wait_for(lambda: relay.passed)
    answer = caller.ask("file.upload", [2], {"path": str(file)})
    assert "under way" in answer["err"]["message"]
    job = next(iter(uploads_of(sender)._jobs.values()))
    wait_for(job.unanswered)
    caller.push("file.upload", [2], {"path": str(file)})
    wait_for(lambda: len(relay.passed) == 2)
