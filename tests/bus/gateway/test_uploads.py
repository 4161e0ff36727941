"""Uploads between gateways: whole files or errors, and nothing where it does not belong."""

from __future__ import annotations

import base64
import itertools
import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import EXPIRED, BusError, TwinsUnavailable
from wsmux.bus.gateway import upload_progress, upload_sender, uploads
from wsmux.bus.gateway.backlog import Waiting, backlog_key, encode_backlog
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.session.identity_session import clock
from wsmux.bus.twins.records import Twin
from wsmux.bus.wire.envelope import relay_error, time_left
from wsmux.bus.wire.messages import Envelope
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.clients import ALICE, BOB, WAIT
from ...helpers.bus.gateway_programs import Caller, Service, database
from ...helpers.bus.gateways import gateway, lists
from ...helpers.bus.inside import endpoint_of
from ...helpers.bus.people import Table
from ...helpers.bus.scripted_relay import Change, StageRelay
from ...helpers.redis_server import RedisServer
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
    """Return a file of several pieces, which is sent again soon."""
    monkeypatch.setattr(upload_sender, "CHUNK", 1000)
    monkeypatch.setattr(upload_sender, "WINDOW", 3000)
    monkeypatch.setattr(upload_progress, "FIRST", 0.2)
    monkeypatch.setattr(upload_progress, "STALL", 0.5)
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


# What is lost, doubled or late on the way


class Harm:
    """A relay that does harm once: to a request of a command, or to the next answer after it."""

    def __init__(self, command: str, number: int, *, answer: bool, harm: Change) -> None:
        self._command, self._left, self._answer, self._harm = command, number, answer, harm
        self.done = False

    def __call__(self, envelope: Envelope) -> list[Envelope]:
        asked = envelope.request.command == self._command
        self._left -= asked
        hit = envelope.source.twin == BOB.id if self._answer else asked
        if self.done or self._left > 0 or not hit:
            return [envelope]
        self.done = True
        return self._harm(envelope)


@pytest.mark.parametrize("answer", [False, True], ids=["request", "answer"])
@pytest.mark.parametrize("kind", ["lost", "doubled", "cut"])
@pytest.mark.parametrize(
    ("command", "number"), [("file.negotiate", 1), ("file.write", 5), ("file.close", 1)]
)
def test_what_happens_on_the_way_does_no_harm(
    sender: Peer,
    taker: Peer,
    caller: Caller,
    relay: StageRelay,
    server: RedisServer,
    file: Path,
    tmp_path: Path,
    command: str,
    number: int,
    kind: str,
    answer: bool,
) -> None:
    def harm(envelope: Envelope) -> list[Envelope]:
        if kind == "cut":
            relay.cut()
        return [envelope] * 2 if kind == "doubled" else []

    relay.change = change = Harm(command, number, answer=answer, harm=harm)
    with Service(database(server, 2), "arrived") as service:
        said = caller.ask("file.upload", [2], {"path": str(file), "cmd": "arrived"})
        assert said["err"] is None
        wait_for(lambda: service.requests)
        assert change.done
    assert [path.read_bytes() for path in kept(tmp_path)] == [file.read_bytes()]
    assert len(service.requests) == 1


def test_pieces_that_change_places_do_no_harm(
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
    assert caller.ask("file.upload", [2], {"path": str(file)})["err"] is None
    assert [path.read_bytes() for path in kept(tmp_path)] == [file.read_bytes()]


def test_a_relay_that_is_killed_does_no_harm(
    server: RedisServer, twins: Table, caller: Caller, file: Path, tmp_path: Path
) -> None:
    with StageRelay() as first, ExitStack() as stack:
        reached = threading.Event()

        def stop(envelope: Envelope) -> list[Envelope]:
            reached.set()
            first.change = lambda envelope: []
            return []

        first.change = Harm("file.write", 5, answer=False, harm=stop)
        for who, folder in ((ALICE, "ours"), (BOB, "theirs")):
            stack.enter_context(gateway(server, first, twins, who, uploads=tmp_path / folder))
        ret = caller.push("file.upload", [2], {"path": str(file)})
        assert reached.wait(WAIT)
        first.stop()
        with StageRelay(first.port):
            assert caller.answer(ret)["err"] is None
    assert [path.read_bytes() for path in kept(tmp_path)] == [file.read_bytes()]


@pytest.mark.parametrize("command", ["file.negotiate", "file.write", "file.close"])
def test_a_receiver_that_stays_away_ends_the_upload_with_its_request(
    sender: Peer,
    taker: Peer,
    caller: Caller,
    relay: StageRelay,
    file: Path,
    tmp_path: Path,
    command: str,
) -> None:
    relay.change = lambda envelope: [] if envelope.request.command == command else [envelope]
    answer = caller.ask("file.upload", [2], {"path": str(file)}, exp=3)
    assert answer["err"]["code"] == EXPIRED
    assert "expired" in answer["err"]["message"]
    assert [path for path in kept(tmp_path) if path.suffix != ".part"] == []
    wait_for(lambda: kept(tmp_path) == [])


def test_a_relays_error_ends_an_upload_that_has_not_begun(
    sender: Peer, caller: Caller, relay: StageRelay, file: Path
) -> None:
    relay.change = lambda envelope: [relay_error(envelope, "never heard of it", clock())]
    answer = caller.ask("file.upload", [2], {"path": str(file)})
    assert answer["err"] == {"code": 0, "message": "never heard of it"}


def test_a_relays_error_about_one_of_many_messages_ends_none(
    sender: Peer, taker: Peer, caller: Caller, relay: StageRelay, file: Path, tmp_path: Path
) -> None:
    def refuse(envelope: Envelope) -> list[Envelope]:
        return [relay_error(envelope, "too much", clock())]

    relay.change = Harm("file.write", 5, answer=False, harm=refuse)
    assert caller.ask("file.upload", [2], {"path": str(file)})["err"] is None
    relay.change = lambda envelope: (
        refuse(envelope) if envelope.request.command == "file.write" else [envelope]
    )
    answer = caller.ask("file.upload", [2], {"path": str(file)}, exp=3)
    assert answer["err"]["code"] == EXPIRED
    assert answer["err"]["message"].endswith("a relay said: too much")


def test_a_directory_that_is_away_only_delays_an_upload(
    sender: Peer,
    taker: Peer,
    caller: Caller,
    twins: Table,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = endpoint_of(sender)
    calls = itertools.count()
    find = endpoint.twin

    def twin(number: int, deadline: Deadline) -> Twin:
        if next(calls) in (1, 5, 9):
            raise TwinsUnavailable("the directory is away")
        return find(number, deadline)

    monkeypatch.setattr(endpoint, "twin", twin)
    assert caller.ask("file.upload", [2], {"path": str(file)})["err"] is None


def test_a_file_that_changes_while_it_is_sent_is_refused(
    sender: Peer, taker: Peer, caller: Caller, relay: StageRelay, file: Path, tmp_path: Path
) -> None:
    def shorten(envelope: Envelope) -> list[Envelope]:
        os.truncate(file, 1000)
        return [envelope]

    relay.change = Harm("file.write", 1, answer=False, harm=shorten)
    answer = caller.ask("file.upload", [2], {"path": str(file)})
    assert "became shorter" in answer["err"]["message"]


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


# Gateways that end and start


def test_the_next_gateway_goes_on_with_an_upload(
    server: RedisServer,
    relay: StageRelay,
    twins: Table,
    caller: Caller,
    taker: Peer,
    file: Path,
    tmp_path: Path,
) -> None:
    relay.change = hold = Harm("file.write", 5, answer=False, harm=lambda envelope: [])
    with gateway(server, relay, twins, ALICE, uploads=tmp_path / "ours"):
        ret = caller.push("file.upload", [2], {"path": str(file)})
        wait_for(lambda: hold.done)
        relay.change = lambda envelope: []
    relay.change = lambda envelope: [envelope]
    with gateway(server, relay, twins, ALICE, uploads=tmp_path / "ours"):
        assert caller.answer(ret)["err"] is None
    assert [path.read_bytes() for path in kept(tmp_path)] == [file.read_bytes()]
    assert [key for key in lists(server, 1) if key.startswith("msgbus.system.")] == []


def test_the_next_gateway_tells_of_an_upload_that_it_cannot_go_on_with(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller, file: Path, tmp_path: Path
) -> None:
    told = []
    for options, change in (
        ({}, lambda: None),
        ({"uploads": tmp_path / "ours"}, file.unlink),
    ):
        with gateway(server, relay, twins, ALICE, uploads=tmp_path / "ours"):
            ret = caller.push("file.upload", [2], {"path": str(file)})
            wait_for(lambda: relay.passed)
        change()
        with gateway(server, relay, twins, ALICE, **options):
            told.append(caller.answer(ret)["err"]["message"])
        relay.passed.clear()
    assert "disabled" in told[0]
    assert "cannot be read" in told[1]


def test_an_upload_that_expires_between_two_gateways_is_told(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller, file: Path, tmp_path: Path
) -> None:
    with gateway(server, relay, twins, ALICE, uploads=tmp_path / "ours"):
        ret = caller.push("file.upload", [2], {"path": str(file)}, exp=2)
        wait_for(lambda: relay.passed)
    (asked, *_) = relay.passed
    wait_for(lambda: time_left(asked, clock()) <= 0)
    with gateway(server, relay, twins, ALICE, uploads=tmp_path / "ours"):
        assert caller.answer(ret)["err"]["code"] == EXPIRED


def test_uploads_that_nobody_answers_make_room(
    sender: Peer, caller: Caller, relay: StageRelay, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_JOBS", 1)
    relay.change = lambda envelope: []
    ret = caller.push("file.upload", [2], {"path": str(file)}, exp=3)
    wait_for(lambda: relay.passed)
    answer = caller.ask("file.upload", [2], {"path": str(file)})
    assert "under way" in answer["err"]["message"]
    assert caller.answer(ret)["err"]["code"] == EXPIRED
    caller.push("file.upload", [2], {"path": str(file)})
    wait_for(lambda: len({each.uid for each in relay.passed}) == 2)


def test_an_upload_of_the_reference_gateway_is_told_of_its_end(
    server: RedisServer, relay: StageRelay, twins: Table, sender: Peer, caller: Caller
) -> None:
    waiting = Waiting("theirs", "mine", "answers.theirs", uploads.MODULE, 60)
    caller.redis.set(backlog_key("theirs"), encode_backlog(waiting), ex=60)
    asked = Envelope(uid="theirs", timestamp=clock(), expiration=60)
    asked.source.twin = ALICE.id
    relay.deliver(relay_error(asked, "of its relay", clock()))
    assert "another gateway" in caller.answer("answers.theirs")["err"]["message"]
