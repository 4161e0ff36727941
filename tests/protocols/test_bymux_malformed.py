"""Each malformed, doubtful or excessive packet of the tables below has the end that stands there.

The ends come from the Bymux text and, where it is silent, from the rules at the head of
``wsmux.protocols.bymux``. Every case is fed in one piece and byte by byte. What the text forbids
raises one sentence and leaves everything as the packets before it had left it: nothing is sent,
since "terminate" has no packet. What is ignored changes nothing at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from wsmux.exceptions import FlowControlError, FrameError, RemoteProtocolError, StreamIdError
from wsmux.protocols.base import Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.bymux_state import INFINITE, BymuxState, HalfState, StreamState
from wsmux.protocols.events import (
    CreditGranted,
    DataReceived,
    Event,
    GoAwayReceived,
    OpenPermitted,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    WriteStopped,
)

from ..helpers.bymux_wire import (
    CLOSE,
    CREDIT,
    PING,
    PONG,
    STOP_READ,
    WRITE,
    all_events,
    fresh,
    opened,
    overall,
    packet,
    quiet,
    snapshot,
    write,
)
from ..helpers.inside import state_of
from ..helpers.machine_pairs import id_of, lift_budgets, other, outbox
from ..helpers.memory_sizes import held
from ..helpers.tables import each_case, each_row

LONGEST_REASON = 123  # bytes of a close frame's reason: the sentence is sent in it
KIB = 1024
MIB = 1024 * KIB
LARGEST = 2**64 - 1

CLIENT, SERVER = Role.CLIENT, Role.SERVER
ROLES = [CLIENT, SERVER]
WIDTHS = (1, 2, 4, 8)
KINDS = range(6)
NAMES = ("Credit", "Write", "Ping", "Pong", "Close", "StopRead")
OWN, THEIRS = {role: id_of(role) for role in ROLES}, {role: id_of(other(role)) for role in ROLES}
WINDOW, GIVEN = 100, 200  # credit each way on an opened stream


class Broken(NamedTuple):
    """The connection ends."""

    error: type[RemoteProtocolError]
    sentence: str
    code: int = 1002


class Taken(NamedTuple):
    """The connection goes on.

    ``ignored`` tells that nothing of what the machine remembers may change; ``credit`` is what the
    stream, or the opening of streams, has behind the packet; ``part`` what is kept of it.
    """

    events: tuple[Event, ...] = ()
    sends: tuple[bytes, ...] = ()
    ignored: bool = False
    credit: int | None = None
    part: bytes = b""


class Case(NamedTuple):
    """What is fed to a machine, after legal packets in the same message, and the end of it."""

    name: str
    start: str
    wire: bytes
    end: Broken | Taken
    role: Role = SERVER
    first: bytes = b""


IGNORED = Taken(ignored=True)


# The conversation before. The stream, where there is one, is the first of the side that opened it.


def after(machine: BymuxProtocol, *wires: bytes) -> BymuxProtocol:
    machine.receive_data(b"".join(wires))
    return machine


def agreed(role: Role, stream_id: int, credit: int, **limits: Any) -> BymuxProtocol:
    """Return a machine with a stream there from the start, on which the peer has credit."""
    stream = StreamState(stream_id=stream_id, incoming=HalfState(credit=credit))
    return quiet(role, BymuxState(streams=(stream,)), **limits)


def ended(role: Role, *, local: bool) -> BymuxProtocol:
    """Return a machine whose stream has ended, with all four packets."""
    machine, stream_id = opened(role, local=local)
    machine.refuse(stream_id, 0)
    return after(machine, packet(CLOSE, stream_id), packet(STOP_READ, stream_id))


def half_ended(role: Role, local: bool, ours: str, theirs: str) -> BymuxProtocol:
    """Return a machine with a stream on which this side, then the peer, sent the packets named."""
    machine, stream_id = opened(role, local=local)
    if "Close" in ours:
        machine.close_write(stream_id, 0.0)
    if "StopRead" in ours:
        machine.close_read(stream_id)
    return after(machine, *(packet(NAMES.index(name), stream_id) for name in theirs.split()))


def half_gone(role: Role, going: bool, theirs: str) -> BymuxProtocol:
    machine = quiet(role)
    if going:
        machine.go_away(0)
    return after(machine, *(overall(NAMES.index(name)) for name in theirs.split()))


def big(kind: int, stream_id: int | None, number: int | None = None) -> bytes:
    """Return a packet whose integers all have eight bytes."""
    return wide(kind, stream_id, number, 3, 3)


def wide(kind: int, stream_id: int | None, number: int | None, id_code: int, code: int) -> bytes:
    """Return a packet with the given width codes; without an integer, its bits mean nothing."""
    wire = bytes((kind << 5 | (stream_id is None) << 4 | id_code << 2 | code,))
    if stream_id is not None:
        wire += stream_id.to_bytes(WIDTHS[id_code], "big")
    if number is not None:
        wire += number.to_bytes(WIDTHS[code], "big")
    return wire


def whole(kind: int, stream_id: int | None) -> bytes:
    """Return any packet of a kind: Credit of 1, a Write of one byte, the opening of stream 12."""
    if stream_id is None:
        return overall(kind, {CREDIT: 1, WRITE: 12}.get(kind))
    return write(stream_id, b"x") if kind == WRITE else packet(kind, stream_id, not kind or None)


OVER = HalfState(closed=True, stopped=True)
STARTS: dict[str, Callable[[Role], BymuxProtocol]] = {
    "fresh": lambda role: quiet(role, opens=0),
    "quiet": quiet,
    "own": lambda role: opened(role, local=True).machine,
    "theirs": lambda role: opened(role, local=False).machine,
    "own, no credit": lambda role: opened(role, local=True, credit=0).machine,
    "long window": lambda role: opened(role, local=True, window=MIB).machine,
    "own, no window": lambda role: opened(role, local=True, window=0).machine,
    "theirs, window 4": lambda role: opened(role, local=False, window=4).machine,
    "unaccepted": lambda role: after(quiet(role), overall(WRITE, THEIRS[role])),
    "no credit to open": lambda role: opened(role, local=False, max_streams=1).machine,
    "used": lambda role: ended(role, local=False),
    "own used": lambda role: ended(role, local=True),
    "three empty": lambda role: after(
        opened(role, local=True, max_empty_frames=3).machine, 3 * write(OWN[role], b"")
    ),
    "infinite window": lambda role: agreed(
        role, 6, INFINITE, max_message_size=300, max_frame_size=9
    ),
    "largest window": lambda role: agreed(role, LARGEST, LARGEST - 1),
    "all over": lambda role: fresh(role, BymuxState(opening=OVER, accepting=OVER)),
}

# What a packet does on a stream that is half ended. What was sent before, by us and by the peer:
HALF_ENDED = """
ours           theirs   | Credit Write  Ping  Pong Close   StopRead
-              -        | more   data   pong  -    end     stop
Close          -        | more   data   pong  -    end     silent
StopRead       -        | more   silent pong  -    silent  stop
Close+StopRead -        | more   silent -     -    silent  silent
StopRead       Close    | more   broken pong  -    broken  stop+finish
Close+StopRead Close    | more   broken -     -    broken  finish
Close          StopRead | broken data   pong  -    end+finish broken
Close+StopRead StopRead | broken silent -     -    finish  broken
"""

# The same of the opening of streams; this side may have gone away, which sends both.
HALF_GONE = """
ours       theirs         | Credit Write  Ping   Pong   Close  StopRead
-          -              | more   open   pong   -      answer leave
-          Close          | more   broken pong   -      broken leave
-          StopRead       | broken open   pong   -      answer broken
-          Close+StopRead | broken broken broken broken broken broken
going-away -              | more   refuse -      -      silent silent
going-away Close          | more   broken -      -      broken silent
going-away StopRead       | broken refuse -      -      silent broken
going-away Close+StopRead | broken broken broken broken broken broken
"""

# Whose packet is forbidden by what was sent before it.
FORBIDS = ("StopRead", "Close", "Close and StopRead", "Close and StopRead", "Close", "StopRead")


def rows(table: str) -> Iterator[tuple[str, str, list[str]]]:
    for line in table.strip().splitlines()[1:]:
        before, ends = line.split("|")
        ours, theirs = (side.strip("-").replace("+", " ") for side in before.split())
        yield ours, theirs, ends.split()


for ours, theirs, _ in rows(HALF_ENDED):
    for local in (True, False):
        STARTS[f"{local=}: {ours} | {theirs}"] = partial(
            half_ended, local=local, ours=ours, theirs=theirs
        )
for ours, theirs, _ in rows(HALF_GONE):
    STARTS[f"all: {ours} | {theirs}"] = partial(half_gone, going=bool(ours), theirs=theirs)


# The ends that return


def inactive(kind: int, stream_id: int) -> Broken:
    return Broken(StreamIdError, f"{NAMES[kind]} on stream {stream_id}, which is not active")


def wrong_opening(stream_id: int, what: str) -> Broken:
    return Broken(StreamIdError, f"the peer opened stream {stream_id}, {what}")


def over_write(size: int, stream_id: int, credit: int) -> Broken:
    sentence = f"Write of {size} bytes on stream {stream_id} with {credit} of credit"
    return Broken(FlowControlError, sentence)


def behind(kind: int, stream_id: int | None, end: str) -> Broken:
    if stream_id is None:
        return Broken(FrameError, f"global {NAMES[kind]} after the same side's global {end}")
    return Broken(StreamIdError, f"{NAMES[kind]} on stream {stream_id} after the same side's {end}")


# Header bytes and widths


def undefined_types() -> Iterator[Case]:
    for header in range(0xC0, 0x100):
        end = Broken(FrameError, f"packet of the undefined type {header >> 5}")
        yield Case(f"header {header:02x}", "theirs", bytes((header,)), end)
    for header in (0xC0, 0xFF):
        end = Broken(FrameError, f"packet of the undefined type {header >> 5}")
        for name, first in (("data", write(0, b"x")), ("opening", overall(WRITE, 2))):
            yield Case(f"header {header:02x} behind {name}", "theirs", bytes((header,)), end,
                       first=first)  # fmt: skip
        wire = bytes((header,)) + write(0, b"x")
        yield Case(f"header {header:02x} before data", "theirs", wire, end)


def width_pairs() -> Iterator[Case]:
    """Integers are read in any width, and bits without a meaning are not looked at."""
    for id_code in range(4):
        for code in range(4):
            for kind in KINDS:
                number = {CREDIT: 7, WRITE: 3}.get(kind)
                body = b"abc" if kind == WRITE else b""
                ends = {
                    CREDIT: Taken(credit=GIVEN + 7),
                    WRITE: Taken((DataReceived(0, b"abc"),)),
                    PING: Taken(sends=(packet(PONG, 0),)),
                    PONG: IGNORED,
                    CLOSE: Taken((StreamEnded(0),), (packet(STOP_READ, 0),)),
                    STOP_READ: Taken((WriteStopped(0, None),), (packet(CLOSE, 0),)),
                }
                wire = wide(kind, 0, number, id_code, code) + body
                yield Case(f"{NAMES[kind]}, widths {id_code} {code}", "theirs", wire, ends[kind])
                number = {CREDIT: 7, WRITE: 2}.get(kind)
                ends = {
                    CREDIT: Taken(credit=9 + 7),
                    WRITE: Taken((StreamOpened(2),)),
                    PING: Taken(sends=(overall(PONG),)),
                    PONG: IGNORED,
                    CLOSE: Taken(sends=(overall(STOP_READ),)),
                    STOP_READ: Taken((GoAwayReceived(1, 0),), (overall(CLOSE),)),
                }
                wire = wide(kind, None, number, id_code, code)
                name = f"global {NAMES[kind]}, widths {id_code} {code}"
                yield Case(name, "theirs", wire, ends[kind])


def width_pairs_of_broken_packets() -> Iterator[Case]:
    for id_code in range(4):
        for code in range(4):
            codes = f"widths {id_code} {code}"
            wire = wide(WRITE, 0, 5, id_code, code)
            yield Case(f"over-write, {codes}", "theirs, window 4", wire, over_write(5, 0, 4))
            largest = 256 ** WIDTHS[code] - 1
            wire = wide(WRITE, 0, largest, id_code, code)
            end = over_write(largest, 0, 4)
            yield Case(f"largest over-write, {codes}", "theirs, window 4", wire, end)
            wire = wide(WRITE, None, 0, id_code, code)
            end = wrong_opening(0, "which is active")
            yield Case(f"opening an active id, {codes}", "theirs", wire, end)
            wire = wide(WRITE, None, 1, id_code, code)
            end = wrong_opening(1, "an id of this side")
            yield Case(f"opening an own id, {codes}", "theirs", wire, end)
            unknown = 256 ** WIDTHS[id_code] - 1
            wire = wide(CREDIT, unknown, 1, id_code, code)
            yield Case(f"credit for no stream, {codes}", "theirs", wire, inactive(CREDIT, unknown))


def cuts() -> Iterator[Case]:
    """A message may end anywhere: a head that is not whole says nothing yet."""
    for kind in KINDS:
        for stream_id, label in ((0, ""), (None, "global ")):
            number = None if kind not in (CREDIT, WRITE) else 2 if stream_id is None else 3
            wire = big(kind, stream_id, number)
            for cut in range(1, len(wire)):
                end = Taken(ignored=True, part=wire[:cut])
                yield Case(f"{label}{NAMES[kind]} cut at {cut}", "theirs", wire[:cut], end)
    for cut in range(3):
        wire = packet(WRITE, 0, 3) + b"abc"[:cut]
        end = Taken(ignored=True, part=wire)
        yield Case(f"body cut at {cut}", "theirs", wire, end)


# Ids


def unknown_ids() -> Iterator[Case]:
    for kind in KINDS:
        for role in ROLES:
            own, theirs = OWN[role], THEIRS[role]
            for start, ids in (
                ("fresh", [own, theirs]),
                ("theirs", [own, theirs + 2, theirs + 256]),
                ("used", [theirs]),
                ("own used", [own]),
            ):
                for stream_id in ids:
                    wire = wide(kind, stream_id, {CREDIT: 1, WRITE: 0}.get(kind), 1, 0)
                    name = f"{NAMES[kind]} on {stream_id}, {start}, {role}"
                    yield Case(name, start, wire, inactive(kind, stream_id), role)
        for stream_id in (255, 2**16 - 1, 2**32 - 1, LARGEST):
            wire = big(kind, stream_id, {CREDIT: 2, WRITE: 0}.get(kind))
            name = f"{NAMES[kind]} on the distant {stream_id}"
            yield Case(name, "theirs", wire, inactive(kind, stream_id))


def openings() -> Iterator[Case]:
    for role in ROLES:
        own, theirs = OWN[role], THEIRS[role]
        end: Broken | Taken
        for stream_id in (own, own + 2, LARGEST - (own == 0)):
            end = wrong_opening(stream_id, "an id of this side")
            for start in ("quiet", "own", "own used"):
                name = f"opening {stream_id}, {start}, {role}"
                yield Case(name, start, big(WRITE, None, stream_id), end, role)
        end = wrong_opening(theirs, "which is active")
        half_ended = [f"local=False: {ours} | {theirs}" for ours, theirs, _ in rows(HALF_ENDED)]
        for start in ["unaccepted", *half_ended]:
            yield Case(f"opening again, {start}, {role}", start, overall(WRITE, theirs), end, role)
        wire = overall(WRITE, theirs + 2)
        sentence = f"the peer opened stream {theirs + 2} without credit for it"
        end = Broken(FlowControlError, sentence)
        yield Case(f"opening without credit, {role}", "no credit to open", wire, end, role)
        end = behind(WRITE, None, "Close")
        yield Case(f"opening never agreed on, {role}", "all over", wire, end, role)
        for stream_id in (theirs, theirs + 100, LARGEST - (theirs == 0)):
            end = Taken((StreamOpened(stream_id),))
            name = f"opening {stream_id} first, {role}"
            yield Case(name, "quiet", big(WRITE, None, stream_id), end, role)


def reuse() -> Iterator[Case]:
    """An id is free once all four packets passed; its new stream starts from nothing."""
    for role in ROLES:
        own, theirs = OWN[role], THEIRS[role]
        again = theirs + 2**64  # what the owner calls it
        opening, opens = overall(WRITE, theirs), StreamOpened(again)
        pong, stop_read = packet(PONG, theirs), packet(STOP_READ, theirs)
        taken = {
            "with eight bytes": (big(WRITE, None, theirs), Taken((opens,), credit=9)),
            "and credit": (packet(CREDIT, theirs, 5), Taken((CreditGranted(again),), credit=5)),
            "and no data": (write(theirs, b""), Taken()),
            "and ping": (packet(PING, theirs), Taken(sends=(pong,))),
            "and close": (packet(CLOSE, theirs), Taken((StreamEnded(again),), (stop_read,))),
            "and data": (write(theirs, b"x"), over_write(1, theirs, 0)),
            "twice": (opening, wrong_opening(theirs, "which is active")),
            "by its other side": (overall(WRITE, own), wrong_opening(own, "an id of this side")),
        }
        for name, (wire, end) in taken.items():
            first = opening if "and" in name or name == "twice" else b""
            yield Case(f"id used again {name}, {role}", "used", wire, end, role, first)


# Credit


def credit_of_streams() -> Iterator[Case]:
    """The sum 2^64-1, and a Credit of 0, are infinite; above, and on infinite, is an error."""
    stream_id = OWN[SERVER]
    sums = [
        (0, 1), (0, LARGEST - 1), (0, LARGEST), (1, 1), (1, LARGEST - 2), (1, LARGEST - 1),
        (1, LARGEST), (2, LARGEST - 1), (200, 2**32), (2**63, 2**63 - 2), (2**63, 2**63 - 1),
        (2**63, 2**63), (LARGEST - 2, 1), (LARGEST - 2, 2), (LARGEST - 2, 3), (LARGEST - 1, 1),
        (LARGEST - 1, 2), (LARGEST - 1, LARGEST), (0, 0), (1, 0), (LARGEST - 1, 0),
    ]  # fmt: skip
    for had, count in sums:
        first = big(CREDIT, stream_id, had) if had else b""
        granted = () if had else (CreditGranted(stream_id),)
        end: Broken | Taken = Taken(granted, credit=had + count if count else INFINITE)
        if had + count > LARGEST:
            sentence = f"Credit of {count} for stream {stream_id} lifts it above 2^64-1"
            end = Broken(FlowControlError, sentence)
        name = f"credit of {count} on {had}"
        yield Case(name, "own, no credit", big(CREDIT, stream_id, count), end, first=first)
    ways = {
        "by 0": packet(CREDIT, stream_id, 0),
        "by the sum": big(CREDIT, stream_id, LARGEST),
        "by both": big(CREDIT, stream_id, LARGEST) + packet(CREDIT, stream_id, 0),
    }
    for way, first in ways.items():
        for code in range(4):
            wire = wide(CREDIT, stream_id, 0, 0, code)
            name = f"0 in {WIDTHS[code]} bytes on infinite {way}"
            yield Case(name, "own, no credit", wire, IGNORED, first=first)
            for count in {1, 256 ** WIDTHS[code] - 1}:
                sentence = f"Credit of {count} for stream {stream_id}, whose credit is infinite"
                end = Broken(FlowControlError, sentence)
                wire = wide(CREDIT, stream_id, count, 0, code)
                name = f"{count} in {WIDTHS[code]} bytes on infinite {way}"
                yield Case(name, "own, no credit", wire, end, first=first)


def credit_to_open() -> Iterator[Case]:
    """Zero is nothing and 2^64-1 a number; only more than that is an error."""
    for had, count in [
        (0, 0), (0, 1), (0, LARGEST - 1), (0, LARGEST), (1, LARGEST - 2), (1, LARGEST - 1),
        (1, LARGEST), (2**63, 2**63 - 1), (2**63, 2**63), (LARGEST - 1, 1), (LARGEST - 1, 2),
        (LARGEST, 0), (LARGEST, 1), (LARGEST, LARGEST),
    ]:  # fmt: skip
        first = big(CREDIT, None, had) if had else b""
        end: Broken | Taken = Taken((OpenPermitted(),) if count > had == 0 else (),
                                    credit=had + count)  # fmt: skip
        if not count:
            end = IGNORED
        if had + count > LARGEST:
            sentence = f"Credit of {count} for opening streams lifts it above 2^64-1"
            end = Broken(FlowControlError, sentence)
        name = f"global credit of {count} on {had}"
        yield Case(name, "fresh", big(CREDIT, None, count), end, first=first)


def over_writes() -> Iterator[Case]:
    for start, credit, owner in (
        ("own", WINDOW, OWN), ("theirs", WINDOW, THEIRS), ("theirs, window 4", 4, THEIRS),
        ("own, no window", 0, OWN), ("unaccepted", 0, THEIRS),
        ("local=True: StopRead | ", WINDOW, OWN),
    ):  # fmt: skip
        stream_id = owner[CLIENT]
        for size in (credit + 1, 2**16 - 1, 2**32 - 1, LARGEST):
            end: Broken | Taken = over_write(size, stream_id, credit)
            name = f"{size} bytes, announced, {start}"
            yield Case(name, start, big(WRITE, stream_id, size), end, CLIENT)
        if credit:
            used = write(stream_id, bytes(credit))
            end = over_write(1, stream_id, 0)
            name = f"one byte behind the last, {start}"
            yield Case(name, start, packet(WRITE, stream_id, 1), end, CLIENT, used)
            reported = (DataReceived(stream_id, bytes(credit)),) if "Stop" not in start else ()
            yield Case(f"all the credit, {start}", start, used, Taken(reported), CLIENT)
        end = Taken()
        yield Case(f"no bytes, {start}", start, write(stream_id, b""), end, CLIENT)
    wire = big(WRITE, LARGEST, LARGEST)
    end = over_write(LARGEST, LARGEST, LARGEST - 1)
    yield Case("the largest of all", "largest window", wire, end)
    for size in (301, 2**16, LARGEST):
        end = Broken(FrameError, f"Write of {size} bytes on stream 6", 1009)
        yield Case(f"{size} bytes on infinite credit", "infinite window", big(WRITE, 6, size), end)
    wire = big(WRITE, 6, 300) + bytes(300)
    end = Taken((DataReceived(6, bytes(300)),))
    yield Case("300 bytes on infinite credit", "infinite window", wire, end)
    stream_id = OWN[SERVER]
    for code in range(4):
        wire = wide(WRITE, stream_id, 0, 0, code)
        text = "too many frames that change nothing: Config.max_empty_frames is 3"
        end = Broken(FrameError, text, 1008)
        yield Case(f"too many empty Writes, width {code}", "three empty", wire, end)
        first = write(stream_id, b"x")
        name = f"too many empty Writes behind a byte, width {code}"
        yield Case(name, "three empty", wire, end, first=first)


# Ends


def half_ended_streams() -> Iterator[Case]:
    for ours, theirs, ends in rows(HALF_ENDED):
        for local in (True, False):
            stream_id = (OWN if local else THEIRS)[SERVER]
            stopped, finished = WriteStopped(stream_id, None), StreamFinished(stream_id)
            close, stop_read = packet(CLOSE, stream_id), packet(STOP_READ, stream_id)
            effects = {
                "more": Taken(credit=GIVEN + 1),
                "data": Taken((DataReceived(stream_id, b"x"),)),
                "pong": Taken(sends=(packet(PONG, stream_id),)),
                "-": IGNORED,
                "end": Taken((StreamEnded(stream_id),), (stop_read,)),
                "end+finish": Taken((StreamEnded(stream_id), finished), (stop_read,)),
                "stop": Taken((stopped,), (close,)),
                "stop+finish": Taken((stopped, finished), (close,)),
                "finish": Taken((finished,)),
                "silent": Taken(),
            }
            for kind, effect in zip(KINDS, ends, strict=True):
                end = effects.get(effect) or behind(kind, stream_id, FORBIDS[kind])
                start = f"{local=}: {ours} | {theirs}"
                name = f"{NAMES[kind]} on a stream, {start}"
                yield Case(name, start, whole(kind, stream_id), end)


def half_gone_connections() -> Iterator[Case]:
    for ours, theirs, ends in rows(HALF_GONE):
        gone = GoAwayReceived(OWN[SERVER], 0)
        effects = {
            "more": Taken(credit=10),
            "open": Taken((StreamOpened(12),)),
            "refuse": Taken(sends=(packet(STOP_READ, 12), packet(CLOSE, 12))),
            "pong": Taken(sends=(overall(PONG),)),
            "-": IGNORED,
            "answer": Taken(sends=(overall(STOP_READ),)),
            "leave": Taken((gone,), (overall(CLOSE),)),
            "silent": Taken(),
        }
        for kind, effect in zip(KINDS, ends, strict=True):
            end = effects.get(effect) or behind(kind, None, FORBIDS[kind])
            name = f"global {NAMES[kind]}, {ours} | {theirs}"
            yield Case(name, f"all: {ours} | {theirs}", whole(kind, None), end)


TABLES = [
    undefined_types, width_pairs, width_pairs_of_broken_packets, cuts, unknown_ids, openings,
    reuse, credit_of_streams, credit_to_open, over_writes, half_ended_streams,
    half_gone_connections,
]  # fmt: skip
CASES = [case for table in TABLES for case in table()]


def test_every_table_has_cases_and_no_two_are_the_same() -> None:
    assert all(any(table()) for table in TABLES)
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    different = {(case.start, case.role, case.first, case.wire) for case in CASES}
    assert len(different) == len(CASES)


def settled(case: Case) -> BymuxProtocol:
    machine = STARTS[case.start](case.role)
    all_events(machine)
    outbox(machine)
    return machine


@each_row(CASES, name=lambda case: case.name)
def test_case_of_the_tables(case: Case) -> None:
    for step in (len(case.first + case.wire), 1):
        machine, twin = settled(case), settled(case)
        feed(twin, case.first, max(len(case.first), 1))
        if isinstance(case.end, Broken):
            check_broken(machine, twin, case, case.end, step)
        else:
            feed(machine, case.first + case.wire, step)
            check_taken(machine, twin, case, case.end)


def feed(machine: BymuxProtocol, wire: bytes, step: int) -> None:
    for start in range(0, len(wire), step):
        machine.receive_data(wire[start : start + step])


def check_broken(
    machine: BymuxProtocol, twin: BymuxProtocol, case: Case, end: Broken, step: int
) -> None:
    with pytest.raises(end.error) as caught:
        feed(machine, case.first + case.wire, step)
    assert type(caught.value) is end.error
    assert (str(caught.value), caught.value.code) == (end.sentence, end.code)
    assert len(end.sentence.encode()) <= LONGEST_REASON
    assert all_events(machine) == all_events(twin)
    assert outbox(machine) == outbox(twin)
    assert snapshot(machine) == snapshot(twin)


def check_taken(machine: BymuxProtocol, twin: BymuxProtocol, case: Case, end: Taken) -> None:
    assert all_events(machine) == [*all_events(twin), *end.events]
    assert outbox(machine) == [*outbox(twin), *end.sends]
    assert state_of(machine)["_reader"]["_kept"] == end.part
    if end.credit is not None:
        on_all = case.wire[0] & 0x10
        (scope,) = (machine._all,) if on_all else machine._active.values()
        assert scope.outgoing.credit == end.credit
    if end.ignored:
        found, expected = snapshot(machine), snapshot(twin)
        assert found.pop("empty_messages") - expected.pop("empty_messages") in (0, 1)
        assert found == expected


# What is held

SMALL = KIB  # what a packet without a body may cost


@pytest.mark.parametrize(
    ("start", "wire"),
    [
        ("own", big(WRITE, 1, WINDOW + 1)),
        ("own", big(WRITE, 1, LARGEST)),
        ("infinite window", big(WRITE, 6, LARGEST)),
        ("own", big(CREDIT, 1, LARGEST)),
        ("quiet", big(CREDIT, None, LARGEST)),
        ("no credit to open", overall(WRITE, 2)),
    ],
    ids=["write", "2^64-1", "infinite", "credit", "global-credit", "opening"],
)
def test_excess_is_refused_by_its_head_and_nothing_is_held(start: str, wire: bytes) -> None:
    machine = STARTS[start](SERVER)
    before = held(machine)
    with pytest.raises(RemoteProtocolError):
        machine.receive_data(wire)
    assert held(machine) - before < SMALL


def test_of_a_body_that_is_refused_nothing_is_kept() -> None:
    machine = opened(SERVER, local=True, window=5).machine
    with pytest.raises(FlowControlError):
        machine.receive_data(packet(WRITE, 1, 100) + bytes(50))
    assert machine.held() == len(packet(WRITE, 1, 100))


@pytest.mark.parametrize(("start", "stream_id", "size"), [("own", 1, 90), ("long window", 1, MIB)])
def test_memory_for_a_body_is_not_taken_before_it_comes(
    start: str, stream_id: int, size: int
) -> None:
    machine = STARTS[start](SERVER)
    before = held(machine)
    machine.receive_data(big(WRITE, stream_id, size))
    assert held(machine) - before < SMALL
    machine.receive_data(bytes(size - 1))
    assert held(machine) - before < 1.2 * size + SMALL


# Floods. But for the empty Writes, nothing in the machine ends them: it holds nothing for them, and
# the owner counts answers that wait.

FLOODS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "pings": ("quiet", lambda n: overall(PING)),
    "pings of a stream": ("own", lambda n: packet(PING, 1)),
    "pings without an answer": ("all: going-away | ", lambda n: overall(PING)),
    "pongs": ("quiet", lambda n: overall(PONG)),
    "pongs of a stream": ("own", lambda n: packet(PONG, 1)),
    "credit of 1": ("own", lambda n: packet(CREDIT, 1, 1)),
    "credit of 0 on infinite": ("own", lambda n: packet(CREDIT, 1, 0)),
    "credit for an ended half": ("local=True: Close | ", lambda n: packet(CREDIT, 1, 1)),
    "global credit of 0": ("fresh", lambda n: overall(CREDIT, 0)),
    "global credit of 1": ("quiet", lambda n: overall(CREDIT, 1)),
}
ANSWERED_FLOODS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "data and nothing in turn": ("theirs", lambda n: write(0, b"x") + write(0, b"")),
    "open and end": ("quiet", lambda n: open_and_end(2 * n)),
    "open and end, one id": ("quiet", lambda n: open_and_end(2)),
}


def open_and_end(stream_id: int) -> bytes:
    wire = big(WRITE, None, stream_id)
    return wire + b"".join(big(kind, stream_id) for kind in (CLOSE, STOP_READ))


def flood(machine: BymuxProtocol, wire: Callable[[int], bytes], rounds: range) -> None:
    """Feed packets in messages of 50, each followed by an owner who reads or refuses everything."""
    for start in rounds[::50]:
        machine.receive_data(b"".join(wire(start + i) for i in range(50)))
        while events := machine.events():
            for event in events:
                if isinstance(event, StreamOpened):
                    machine.refuse(event.stream_id, 0)
                elif isinstance(event, DataReceived):
                    machine.consumed(event.stream_id, len(event.data))
        outbox(machine)


@each_case
@pytest.mark.parametrize("name", [*FLOODS, *ANSWERED_FLOODS])
def test_a_flood_leaves_nothing_behind(name: str) -> None:
    start, wire = (FLOODS | ANSWERED_FLOODS)[name]
    machine = STARTS[start](SERVER)
    lift_budgets(machine)
    flood(machine, wire, range(500))
    before = held(machine)
    flood(machine, wire, range(500, 2000))
    assert abs(held(machine) - before) < SMALL


@each_case
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_in_one_message_is_not_held(name: str) -> None:
    start, wire = FLOODS[name]
    machine = STARTS[start](SERVER)
    lift_budgets(machine)
    before = held(machine)
    machine.receive_data(b"".join(wire(i) for i in range(1000)))
    assert held(machine) - before < SMALL


def test_empty_writes_end_the_connection_at_their_limit() -> None:
    machine = opened(SERVER, local=True).machine
    machine.receive_data(write(1, b"") * machine.config.max_empty_frames)
    with pytest.raises(FrameError) as caught:
        machine.receive_data(write(1, b""))
    assert caught.value.code == 1008
    assert machine.empty_messages == machine.config.max_empty_frames == 128


# How many of each a machine bears at once, and what it says of the next.
BORNE: dict[str, tuple[str, Callable[[int], bytes], int, str]] = {
    "global pings": (
        "quiet", lambda n: overall(PING),
        128, "pings beyond what its data earns: Config.max_pings is 128",
    ),
    "pings of a stream": (
        "own", lambda n: packet(PING, 1),
        129, "pings beyond what its data earns: Config.max_pings is 128",
    ),
    "credit": (
        "own", lambda n: packet(CREDIT, 1, 1),
        5, "grants of credit for the data sent: Config.max_updates_per_frame is 10",
    ),
    "global credit": (
        "fresh", lambda n: overall(CREDIT, 1),
        5, "grants of credit for the data sent: Config.max_updates_per_frame is 10",
    ),
    "global credit of 0": (
        "quiet", lambda n: overall(CREDIT, 0),
        128, "frames that change nothing: Config.max_empty_frames is 128",
    ),
    "global pongs": (
        "quiet", lambda n: overall(PONG),
        128, "frames that change nothing: Config.max_empty_frames is 128",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BORNE)
def test_a_flood_ends_the_connection_at_its_limit(name: str) -> None:
    start, wire, borne, sentence = BORNE[name]
    machine = STARTS[start](SERVER)
    for n in range(borne):
        machine.receive_data(wire(n))
    with pytest.raises(FrameError) as caught:
        machine.receive_data(wire(borne))
    assert (str(caught.value), caught.value.code) == (f"too many {sentence}", 1008)


def test_every_stream_opened_here_earns_a_ping() -> None:
    machine = quiet(SERVER, max_pings=1)
    for _ in range(3):
        machine.open_stream()
    machine.receive_data(overall(PING) * 4)
    with pytest.raises(FrameError, match="too many pings"):
        machine.receive_data(overall(PING))


def test_streams_that_the_owner_refuses_are_limited() -> None:
    machine = quiet(SERVER, max_resets=2)
    for stream_id in (0, 2, 4):
        machine.receive_data(overall(WRITE, stream_id))
        machine.refuse(stream_id, 0)
    with pytest.raises(
        FrameError, match=r"streams that had to be refused: Config\.max_resets is 2"
    ):
        machine.receive_data(overall(WRITE, 6))


def test_streams_without_number_end_at_the_credit_to_open() -> None:
    machine = quiet(SERVER, max_streams=20)
    machine.receive_data(b"".join(overall(WRITE, 2 * n) for n in range(20)))
    with pytest.raises(FlowControlError, match="opened stream 40 without credit for it"):
        machine.receive_data(overall(WRITE, 40))
    assert machine.open_streams() == 20


def test_work_for_many_streams_in_one_message_does_not_grow_with_their_square() -> None:
    machine = quiet(SERVER, max_streams=10_000)
    wire = b"".join(open_and_end(2 * n) for n in range(10_000))
    start = time.process_time()  # of this process alone, so that a busy machine does not count
    machine.receive_data(wire)
    opened_streams = 0
    while events := machine.events():
        if isinstance(events[-1], StreamOpened):
            opened_streams += 1
            machine.refuse(events[-1].stream_id, 0)
    assert opened_streams == 10_000
    assert time.process_time() - start < 3  # 0.2 s; a square would take 10 s
