"""Put a machine in the place of either end of a recorded conversation.

In the peer's place it does what the peer did and is told what the peer was told, so that what it
sends can be held against what the peer sent. In ours it is told what the peer said.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from wsmux.config import Config
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.events import DataReceived, Event, StreamAborted, StreamEnded, StreamOpened
from wsmux.protocols.native import JS_WS, JS_WS_CLOSE_DELAY, NativeProtocol
from wsmux.protocols.yamux import YamuxProtocol

from ..machine_pairs import other, outbox
from .scripts import Step, payload

__all__ = ["PEERS", "RECORDINGS", "Entry", "Recording", "Seen", "mirrored", "recordings", "told"]

RECORDINGS = Path(__file__).parent / "recordings"

# The wire that each published peer speaks.
PEERS = {"node-yamux": "yamux", "python-yamux": "yamux", "js-ws": "js-ws"}

# A direction and a message in hexadecimal, or the four members of a step.
Entry = list[Any]


class Recording(NamedTuple):
    """One conversation; ``role`` is the peer's."""

    peer: str
    seed: str
    role: Role
    log: list[Entry]

    def sent(self) -> list[bytes]:
        """Return what the peer sent."""
        return [bytes.fromhex(entry[1]) for entry in self.log if entry[0] == "<"]

    def steps(self, side: str) -> list[Step]:
        """Return what one side did."""
        return [Step(*entry) for entry in self.log if entry[0] == side]


def recordings(peer: str) -> list[Recording]:
    """Return every conversation with a peer."""
    lines = (RECORDINGS / f"{peer}.jsonl").read_text().splitlines()
    found = map(json.loads, lines)
    return [Recording(peer, each["seed"], Role(each["role"]), each["log"]) for each in found]


class Seen:
    """Hold what one stream brought: its bytes, and how it ended, if it did."""

    def __init__(self) -> None:
        self.data = b""
        self.end = ""

    def __repr__(self) -> str:
        return f"{self.data!r} {self.end}"


class _Place:
    """An end of the conversation, with an owner who reads everything at once."""

    def __init__(self, recording: Recording, role: Role) -> None:
        self.machine: MuxProtocol
        if PEERS[recording.peer] == "yamux":
            self.machine = YamuxProtocol(role, Config())
        else:  # the published js-ws announces this window
            config = Config(receive_window=2**20, max_message_size=2**21)
            self.machine = NativeProtocol(role, config, JS_WS)
        self.ids: list[int] = []
        self.seen: dict[int, Seen] = {}

    def act(self, step: Step) -> None:
        """Do what a step says."""
        machine = self.machine
        if step.verb == "open":
            self._add(machine.open_stream())
            return
        stream_id = self.ids[step.stream]
        if step.verb == "write":
            assert machine.send_data(stream_id, payload(step)) == step.number
        elif step.verb == "close":
            machine.close_write(stream_id, 0.0)
            if isinstance(machine, NativeProtocol):  # where the close may wait for an answer
                machine.handle_timer(JS_WS_CLOSE_DELAY)
        else:
            # The published Yamux peers have no code to reset with.
            code = step.number if isinstance(machine, NativeProtocol) else 0
            machine.reset_write(stream_id, code)
            machine.reset_read(stream_id, code)

    def hear(self, data: bytes) -> None:
        """Take what the other end sent."""
        self.machine.receive_data(data)
        while events := self.machine.events():
            for event in events:
                self._handle(event)

    def _add(self, stream_id: int) -> None:
        self.ids.append(stream_id)
        self.seen[stream_id] = Seen()

    def _handle(self, event: Event) -> None:
        match event:
            case StreamOpened(stream_id=stream_id):
                self.machine.accept(stream_id, self.machine.config.receive_window)
                self._add(stream_id)
            case DataReceived(stream_id=stream_id, data=data):
                self.seen[stream_id].data += bytes(data)
                self.machine.consumed(stream_id, len(data))
            case StreamEnded(stream_id=stream_id):
                self.seen[stream_id].end = "close"
            case StreamAborted(stream_id=stream_id):
                self.seen[stream_id].end = "reset"


def mirrored(recording: Recording) -> list[bytes]:
    """Return what a machine sends in the peer's place."""
    place = _Place(recording, recording.role)
    sent: list[bytes] = []
    for entry in recording.log:
        if entry[0] == ">":
            place.hear(bytes.fromhex(entry[1]))
        elif entry[0] == "theirs":
            place.act(Step(*entry))
        sent += outbox(place.machine)
    return sent


def told(recording: Recording) -> list[Seen]:
    """Return what a machine in our place is told on each stream."""
    place = _Place(recording, other(recording.role))
    for entry in recording.log:
        if entry[0] == "<":
            place.hear(bytes.fromhex(entry[1]))
        elif entry[0] == "ours":
            place.act(Step(*entry))
        outbox(place.machine)
    return [place.seen[stream_id] for stream_id in place.ids]
