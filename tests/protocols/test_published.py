"""What published peers said means to our machines what it must, and ours say it in their place.

The conversations are made up from seeds (``published.scripts``) and were held with npm
``@libp2p/yamux`` 8.0.3, PyPI ``libp2p`` 0.8.1 and npm ``@matrixai/ws`` 1.1.7, each as client and as
server (``record``). A machine of ours sends the same bytes in the peer's place, but for the
differences that are listed here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations

import pytest

from ..helpers.machine_pairs import ACK as JS_WS_ACK
from ..helpers.machine_pairs import CLOSE as JS_WS_CLOSE
from ..helpers.machine_pairs import ERROR as JS_WS_ERROR
from ..helpers.machine_pairs import READ
from ..helpers.published.replay import PEERS, Recording, mirrored, recordings, told
from ..helpers.published.scripts import payload, script
from ..helpers.yamux_wire import ACK, DATA, FIN, PING, RST, SYN, WINDOW

Messages = list[bytes]

# Conversations: all that are wanted at least, and those that have the same bytes to the last.
WANTED = {"node-yamux": 70, "python-yamux": 70, "js-ws": 70}
SAME = {"node-yamux": 0, "python-yamux": 15, "js-ws": 50}

YAMUX_HEAD = 12


def yamux_frames(sent: Messages) -> Messages:
    """Cut the bytes that were sent into frames, whatever the pieces they went in."""
    wire, frames = b"".join(sent), []
    while wire:
        size = YAMUX_HEAD + (int.from_bytes(wire[8:YAMUX_HEAD], "big") if wire[1] == DATA else 0)
        frames.append(wire[:size])
        wire = wire[size:]
    return frames


def without_own_pings(frames: Messages) -> Messages:
    """Leave out pings: the peers send them when they like, ours when it is told to."""
    return [frame for frame in frames if frame[1] != PING or frame[3] != SYN]


def without_credit(frames: Messages) -> Messages:
    """Leave out credit: npm returns it as data come, PyPI as they are read, ours by the half."""
    return [frame for frame in frames if frame[1] != WINDOW or frame[3]]


def without_acks(frames: Messages) -> Messages:
    """Leave out ACK: npm says it with the next frame that it happens to send, ours at once."""
    cleared = [
        frame[:3] + bytes((frame[3] & ~ACK,)) + frame[4:] if frame[1] in (DATA, WINDOW) else frame
        for frame in frames
        if frame[1] != WINDOW or frame[3] != ACK
    ]
    ends = SYN | FIN | RST  # beside these, what a frame of credit counts is for the ACK
    return [
        frame[:8] + bytes(4) if frame[1] == WINDOW and frame[3] & ends else frame
        for frame in cleared
    ]


def with_errors_sorted(messages: Messages) -> Messages:
    """Put the two ends of one reset in order: here the end of reading overtakes data."""
    ordered = list(messages)
    for index, (first, second) in enumerate(zip(ordered, ordered[1:], strict=False)):
        if first[1:3] == second[1:3] == JS_WS_ERROR.to_bytes(2, "big") and first[0] == second[0]:
            ordered[index : index + 2] = sorted((first, second))
    return ordered


def without_credit_behind_own_end(messages: Messages) -> Messages:
    """Leave out credit on a stream that the sender has ended: it would open a phantom there."""
    kept, ended = [], set()
    for message in messages:
        kind = message[1:3]
        if kind == JS_WS_CLOSE.to_bytes(2, "big") and message[3:] == READ:
            ended.add(message[0])
        if kind != JS_WS_ACK.to_bytes(2, "big") or message[0] not in ended:
            kept.append(message)
    return kept


Rule = Callable[[Messages], Messages]

# How each peer differs from ours.
DIFFERENCES: dict[str, list[Rule]] = {
    "node-yamux": [without_own_pings, without_acks, without_credit],
    "python-yamux": [without_own_pings, without_credit],
    "js-ws": [with_errors_sorted, without_credit_behind_own_end],
}

ALL = [
    pytest.param(recording, id=recording.seed.replace(" ", "-"))
    for peer in PEERS
    for recording in recordings(peer)
]


def fewest(recording: Recording) -> tuple[str, ...] | None:
    """Return the fewest listed differences that account for a conversation, if any do."""
    split = yamux_frames if PEERS[recording.peer] == "yamux" else list
    ours, theirs = split(mirrored(recording)), split(recording.sent())
    listed = DIFFERENCES[recording.peer]
    for count in range(len(listed) + 1):
        for rules in combinations(listed, count):
            left, right = ours, theirs
            for rule in rules:
                left, right = rule(left), rule(right)
            if left == right:
                return tuple(rule.__name__ for rule in rules)
    return None


@cache
def found(peer: str) -> dict[str, tuple[str, ...] | None]:
    """Return what accounts for each conversation with a peer, by its seed."""
    return {recording.seed: fewest(recording) for recording in recordings(peer)}


@pytest.mark.parametrize("recording", ALL)
def test_ours_says_what_the_peer_said(recording: Recording) -> None:
    assert found(recording.peer)[recording.seed] is not None


@pytest.mark.parametrize("peer", PEERS)
def test_every_listed_difference_is_met(peer: str) -> None:
    met = {name for names in found(peer).values() for name in names or ()}
    assert met == {rule.__name__ for rule in DIFFERENCES[peer]}


@pytest.mark.parametrize("peer", PEERS)
def test_there_are_as_many_as_is_said(peer: str) -> None:
    assert len(found(peer)) >= WANTED[peer]
    assert list(found(peer).values()).count(()) >= SAME[peer]


@pytest.mark.parametrize("recording", ALL)
def test_ours_hears_what_the_peer_did(recording: Recording) -> None:
    """Bytes, ends and resets of each stream are those of the script."""
    streams = told(recording)
    data = [b""] * len(streams)
    ends = [""] * len(streams)
    for step in recording.steps("theirs"):
        if step.verb == "write":
            data[step.stream] += payload(step)
        elif step.verb != "open":
            ends[step.stream] = step.verb
    assert [seen.data for seen in streams] == data
    assert [seen.end for seen in streams] == ends


@pytest.mark.parametrize("peer", PEERS)
def test_the_steps_are_those_of_the_seeds(peer: str) -> None:
    for recording in recordings(peer):
        kept = [entry for entry in recording.log if entry[0] in ("ours", "theirs")]
        assert kept == [[*step] for step in script(recording.seed)]
