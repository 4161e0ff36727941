"""Compare what a published peer said with what ours says in its place, rule by listed rule."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from ..machine_pairs import ACK as JS_WS_ACK
from ..machine_pairs import CLOSE as JS_WS_CLOSE
from ..machine_pairs import ERROR as JS_WS_ERROR
from ..machine_pairs import READ
from ..yamux_wire import ACK, DATA, FIN, PING, RST, SYN, WINDOW
from .replay import PEERS, Recording, mirrored

Messages = list[bytes]

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
