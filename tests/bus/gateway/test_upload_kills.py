"""A gateway that is killed while it sends or receives a file: the file arrives whole, and once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from wsmux.bus.gateway import upload_progress, upload_receiver, upload_sender
from wsmux.bus.wire.messages import Envelope

from ...helpers.bus.clients import ALICE, BOB, WAIT
from ...helpers.bus.gateway_process import GatewayProcess
from ...helpers.bus.gateway_programs import Caller, Service, database
from ...helpers.bus.gateways import gateway
from ...helpers.bus.people import Person, Table
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for

# Bytes of a file of several chunks, also of those of another process.
SIZE = 5 * 512 * 1024 + 1


class Stage:
    """Send a file to a gateway; one of the two gateways is a process, and the other is here."""

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        server: RedisServer,
        relay: StageRelay,
        twins: Table,
        killed: Person,
    ) -> None:
        enter = stack.enter_context
        folders = {ALICE.id: folder / "ours", BOB.id: folder / "theirs"}
        self.relay = relay
        self.reached = threading.Event()
        self.gateway = GatewayProcess(
            *(folder, twins, relay.url, database(server, killed.id), killed),
            f"--upload-dir={folders[killed.id]}",
            "--uploads",
        )
        enter(self.gateway.running())
        other = BOB if killed is ALICE else ALICE
        enter(gateway(server, relay, twins, other, uploads=folders[other.id]))
        self.service = enter(Service(database(server, BOB.id), "arrived"))
        self.caller = enter(Caller(database(server, ALICE.id)))
        self._received = folders[BOB.id]
        self._sent = folder / "file"
        self._sent.write_bytes(os.urandom(SIZE))

    def send(self) -> str:
        wish = {"path": str(self._sent), "cmd": "arrived"}
        return self.caller.push("file.upload", [BOB.id], wish)

    def lose_all_from(self, command: str, number: int) -> None:
        """Let the relay deliver nothing more from a message on."""
        seen = 0

        def change(envelope: Envelope) -> list[Envelope]:
            nonlocal seen
            seen += envelope.request.command == command
            return self._lost() if seen >= number else [envelope]

        self.relay.change = change

    def lose_the_confirmation(self) -> None:
        """Let the relay deliver no answer any more once the file is whole.

        Until then, some are needed: a receiver may handle the end before the chunks in front of it,
        and asks for them.
        """

        def change(envelope: Envelope) -> list[Envelope]:
            answer = envelope.source.twin == BOB.id
            return self._lost() if answer and self._whole() else [envelope]

        self.relay.change = change

    def _lost(self) -> list[Envelope]:
        self.reached.set()
        return []

    def _whole(self) -> bool:
        files = self._received.iterdir() if self._received.exists() else ()
        return any(each.suffix != upload_receiver.PART for each in files)

    def kill(self) -> None:
        """Kill the gateway once something was lost, and let the relay deliver all again."""
        assert self.reached.wait(WAIT)
        self.gateway.kill()
        self.relay.change = lambda envelope: [envelope]

    def check(self, ret: str) -> None:
        """Check that the file arrived once, and that its program is told."""
        assert self.caller.answer(ret)["err"] is None
        wait_for(lambda: self.service.requests)
        assert len(self.service.requests) == 1
        assert [each.read_bytes() for each in self._received.iterdir()] == [self._sent.read_bytes()]


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setattr(upload_sender, "WINDOW", 2 * upload_sender.CHUNK)
    monkeypatch.setattr(upload_progress, "FIRST", 0.2)
    monkeypatch.setattr(upload_progress, "STALL", 0.5)
    with ExitStack() as made:
        yield made


@pytest.fixture(params=[ALICE, BOB], ids=["sender", "receiver"])
def stage(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    stack: ExitStack,
    server: RedisServer,
    relay: StageRelay,
    twins: Table,
) -> Stage:
    """Return a stage on which the gateway of this twin is killed."""
    return Stage(tmp_path, stack, server, relay, twins, request.param)


def test_a_gateway_killed_between_chunks_does_no_harm(stage: Stage) -> None:
    stage.lose_all_from("file.write", 4)
    ret = stage.send()
    stage.kill()
    stage.check(ret)


def test_a_gateway_killed_before_the_end_was_confirmed_does_no_harm(stage: Stage) -> None:
    stage.lose_the_confirmation()
    ret = stage.send()
    wait_for(lambda: stage.service.requests)
    stage.kill()
    stage.check(ret)
