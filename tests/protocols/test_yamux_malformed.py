"""Each malformed, doubtful or excessive frame of the tables below has the end that stands there.

The ends come from the specification and from the rules at the head of ``wsmux.protocols.yamux``.
Every case is fed in one piece and byte by byte. A broken rule raises one sentence, queues GO_AWAY 1
and leaves everything else as the frames before it had left it; a head is enough, the body that it
announces is not waited for. What is ignored changes nothing but a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from wsmux.exceptions import FlowControlError, FrameError, RemoteProtocolError, StreamIdError
from wsmux.protocols.base import Role
from wsmux.protocols.events import (
    DataReceived,
    Event,
    GoAwayReceived,
    PongReceived,
    StreamAborted,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    StreamRejected,
    WriteStopped,
)
from wsmux.protocols.yamux import YamuxProtocol

from ..helpers.machine_pairs import lift_budgets, other, outbox
from ..helpers.memory_sizes import held
from ..helpers.tables import each_case, each_row
from ..helpers.yamux_wire import (
    ACK,
    BROKEN,
    DATA,
    FIN,
    GO_AWAY,
    INITIAL,
    KIB,
    MIB,
    PING,
    RST,
    SYN,
    WINDOW,
    data_frame,
    head,
    opened,
    snapshot,
    window,
    yamux,
    yid,
)

LONGEST_REASON = 123  # bytes of a close frame's reason: the sentence is sent in it
LARGEST = 2**32 - 1
LONGEST_FRAME = 16 * MIB
MOST_CREDIT = LARGEST - INITIAL  # what can be added to the credit of a new stream

CLIENT, SERVER = Role.CLIENT, Role.SERVER
ROLES = [CLIENT, SERVER]
FLAGS = range(16)
NAMES = ("DATA", "WINDOW", "PING", "GO_AWAY")
WRONG_PARITY, STILL_OPEN = "of the parity of this side", "which is open"


class Broken(NamedTuple):
    """The connection ends."""

    error: type[RemoteProtocolError]
    sentence: str
    code: int = 1002
    sends: tuple[bytes, ...] = (BROKEN,)


class Taken(NamedTuple):
    """The connection goes on.

    ``adds`` is what the frame adds to what the machine remembers, where that is all that may
    change; ``None`` where the events tell what changes. ``credit`` is that of the stream behind it.
    """

    events: tuple[Event, ...] = ()
    sends: tuple[bytes, ...] = ()
    adds: dict[str, Any] | None = None
    credit: int | None = None


class Case(NamedTuple):
    """What is fed to a machine, after legal frames in the same message, and the end of it."""

    name: str
    start: str
    wire: bytes
    end: Broken | Taken
    role: Role = CLIENT
    first: bytes = b""


IGNORED = Taken(adds={})


# The conversation before. The stream, where there is one, is the first of the side that opened it.

OWN, THEIRS = {role: yid(role) for role in ROLES}, {role: yid(other(role)) for role in ROLES}


def local(role: Role, *frames: bytes, **limits: Any) -> YamuxProtocol:
    """Return a machine with a stream opened here, which then received ``frames``."""
    machine, _ = opened(role, local=True, **limits)
    machine.receive_data(b"".join(frames))
    return machine


def remote(role: Role, *frames: bytes, **limits: Any) -> YamuxProtocol:
    machine, _ = opened(role, local=False, **limits)
    machine.receive_data(b"".join(frames))
    return machine


def new(role: Role, *frames: bytes, **limits: Any) -> YamuxProtocol:
    machine = yamux(role, **limits)
    machine.receive_data(b"".join(frames))
    return machine


def after(machine: YamuxProtocol, *calls: Callable[[YamuxProtocol], object]) -> YamuxProtocol:
    for call in calls:
        call(machine)
    return machine


STARTS: dict[str, Callable[[Role], YamuxProtocol]] = {
    "new": new,
    "own": local,
    "theirs": remote,
    "unanswered": lambda role: after(new(role), lambda m: m.open_stream()),
    "offered": lambda role: new(role, window(THEIRS[role], 0, SYN)),
    "withdrawn": lambda role: new(role, window(THEIRS[role], 0, SYN), window(THEIRS[role], 0, RST)),
    "ended": lambda role: local(role, window(OWN[role], 0, FIN)),
    "theirs ended": lambda role: remote(role, window(THEIRS[role], 0, FIN)),
    "closed": lambda role: after(local(role), lambda m: m.close_write(OWN[role], 0.0)),
    "unread": lambda role: after(local(role), lambda m: m.close_read(OWN[role])),
    "unread, ended": lambda role: after(
        local(role, window(OWN[role], 0, FIN)), lambda m: m.close_read(OWN[role])
    ),
    "ended, unread": lambda role: after(
        local(role), lambda m: m.close_read(OWN[role]), lambda m: m.receive_data(fin(role))
    ),
    "finished": lambda role: after(
        local(role, window(OWN[role], 0, FIN)), lambda m: m.close_write(OWN[role], 0.0)
    ),
    "theirs finished": lambda role: after(
        remote(role, window(THEIRS[role], 0, FIN)), lambda m: m.close_write(THEIRS[role], 0.0)
    ),
    "reset here": lambda role: after(
        local(role, data_frame(OWN[role], bytes(100))), lambda m: m.reset_write(OWN[role], 0)
    ),
    "reset there": lambda role: local(
        role, data_frame(OWN[role], bytes(100)), window(OWN[role], 0, RST)
    ),
    "one at most": lambda role: remote(role, max_streams=1),
    "going away": lambda role: after(new(role), lambda m: m.go_away(0)),
    "one refused": lambda role: after(
        new(role),
        lambda m: m.go_away(0),
        lambda m: m.receive_data(data_frame(THEIRS[role], bytes(100), SYN)),
    ),
    "one refused with credit": lambda role: after(
        new(role),
        lambda m: m.go_away(0),
        lambda m: m.receive_data(window(THEIRS[role], 100, SYN)),
    ),
    "one byte left": lambda role: local(role, data_frame(OWN[role], bytes(INITIAL - 1))),
    "no byte left": lambda role: local(role, data_frame(OWN[role], bytes(INITIAL))),
    "one byte to drop": lambda role: new(role, data_frame(7, bytes(INITIAL - 1))),
    "full credit": lambda role: local(role, window(OWN[role], MOST_CREDIT)),
    "1000 spent": lambda role: after(local(role), lambda m: m.send_data(OWN[role], bytes(1000))),
    "wide": lambda role: local(role, receive_window=32 * MIB),
    "pinging": lambda role: after(new(role), lambda m: m.ping(5)),
}


def fin(role: Role) -> bytes:
    return window(OWN[role], 0, FIN)


# The ends that return


def wrong_opening(stream_id: int, what: str) -> Broken:
    return Broken(StreamIdError, f"the peer opened stream {stream_id}, {what}")


def too_much(length: int, credit: int, stream_id: int, where: str = "") -> Broken:
    if length > LONGEST_FRAME:
        return Broken(FrameError, f"data frame of {length} bytes, above {LONGEST_FRAME}")
    sentence = f"{length} bytes with {credit} bytes of credit on stream {stream_id}{where}"
    return Broken(FlowControlError, sentence)


def overflow(delta: int, credit: int) -> Broken:
    sentence = f"window update of {delta} bytes lifts the credit of {credit} above 2^32-1"
    return Broken(FlowControlError, sentence)


def aborted(stream_id: int, code: int = 0) -> Taken:
    both = StreamAborted(stream_id, code, False, ""), WriteStopped(stream_id, code)
    return Taken((*both, StreamFinished(stream_id)))


# The fields of the head

LEGAL = (data_frame(1, b""), window(1), head(PING, SYN, 0, 9), head(GO_AWAY, 0, 0, 0))


def versions() -> Iterator[Case]:
    for version in range(1, 256):
        kind = version % 4
        wire = bytes((version,)) + LEGAL[kind][1:]
        end = Broken(FrameError, f"frame of version {version}, not 0")
        yield Case(f"version {version} of {NAMES[kind]}", "own", wire, end)


def types() -> Iterator[Case]:
    for kind in range(4, 256):
        stream_id = kind % 3
        end = Broken(FrameError, f"frame of the unknown type {kind}")
        yield Case(f"type {kind}", "own", head(kind, kind % 16, stream_id, 0), end)


def undefined_bits() -> Iterator[Case]:
    frames = [
        ("opening", "new", (WINDOW, SYN, 2, 0), Taken((StreamOpened(2),))),
        ("data", "own", (DATA, 0, 1, 0), IGNORED),
        ("end", "own", (WINDOW, FIN, 1, 0), Taken((StreamEnded(1),))),
        ("reset", "own", (WINDOW, RST, 1, 7), aborted(1, 7)),
        ("update", "own", (WINDOW, 0, 1, 7), Taken(credit=INITIAL + 7)),
        ("unknown stream", "new", (WINDOW, 0, 9, 7), IGNORED),
        ("ping", "new", (PING, SYN, 0, 7), Taken(sends=(head(PING, ACK, 0, 7),))),
        ("pong", "pinging", (PING, ACK, 0, 5), Taken((PongReceived(None, 5),))),
        ("going away", "new", (GO_AWAY, 0, 0, 0), Taken((GoAwayReceived(1, 0),))),
    ]
    for bit in range(4, 16):
        for what, start, (kind, flags, stream_id, length), end in frames:
            wire = head(kind, flags | 1 << bit, stream_id, length)
            yield Case(f"bit {bit} of {what}", start, wire, end)


def wrong_scopes() -> Iterator[Case]:
    for flags in FLAGS:
        for kind, length in ((DATA, 1), (WINDOW, 1)):
            end = Broken(StreamIdError, f"{NAMES[kind]} frame on stream 0")
            name = f"{NAMES[kind]} with flags {flags} on stream 0"
            yield Case(name, "new", head(kind, flags, 0, length), end)
    for stream_id in (1, 2, 9, LARGEST):
        for kind in (PING, GO_AWAY):
            for flags in (0, SYN, ACK):
                end = Broken(StreamIdError, f"{NAMES[kind]} frame on stream {stream_id}")
                name = f"{NAMES[kind]} with flags {flags} on stream {stream_id}"
                yield Case(name, "own", head(kind, flags, stream_id, 0), end)


def cuts() -> Iterator[Case]:
    """A message may end anywhere: a head that is not whole says nothing yet."""
    for kind, wire in enumerate(LEGAL):
        for cut in range(2 if kind else 1, 12):
            end = Taken(adds={"_part": wire[:cut]})
            yield Case(f"{NAMES[kind]} cut at {cut}", "own", wire[:cut], end)
    for cut in range(5):
        wire = head(DATA, FIN, 1, 5) + b"hello"[:cut]
        yield Case(f"body cut at {cut}", "own", wire, Taken())
    whole = Taken((DataReceived(1, b"hello"), StreamEnded(1)))
    yield Case("body not cut", "own", head(DATA, FIN, 1, 5) + b"hello", whole)


def several() -> Iterator[Case]:
    """What stands before a broken rule counts; what stands behind it is not looked at."""
    legal = {
        "data": data_frame(1, b"x"),
        "opening": window(2, 0, SYN),
        "ping": head(PING, SYN, 0, 3),
        "update": window(1, 5),
        "end": window(1, 0, FIN),
        "reset": window(1, 0, RST),
        "unknown stream": data_frame(9, b"x"),
    }
    broken = {
        "version": (head(PING, SYN, 0, 0, version=1), "frame of version 1, not 0", FrameError),
        "type": (head(4, 0, 0, 0), "frame of the unknown type 4", FrameError),
        "stream 0": (head(DATA, 0, 0, 0), "DATA frame on stream 0", StreamIdError),
        "ping on a stream": (head(PING, SYN, 1, 0), "PING frame on stream 1", StreamIdError),
        "parity": (window(3, 0, SYN), f"the peer opened stream 3, {WRONG_PARITY}", StreamIdError),
        "longest": (
            head(DATA, 0, 1, LARGEST),
            f"data frame of {LARGEST} bytes, above {LONGEST_FRAME}",
            FrameError,
        ),
        "overflow": (window(4, LARGEST, SYN), overflow(LARGEST, INITIAL).sentence, None),
    }
    for bad, (wire, sentence, error) in broken.items():
        end = Broken(error or FlowControlError, sentence)
        for good, frame in legal.items():
            yield Case(f"{good} before {bad}", "own", wire, end, first=frame)
        yield Case(f"{bad} before others", "own", wire + b"".join(legal.values()), end)
        yield Case(f"{bad} before half a head", "own", wire + LEGAL[0][:5], end)


# Flags


class Row(NamedTuple):
    """What the first flag that is set, in this order, does to a stream; it carries no credit."""

    start: str
    own: bool  # this side opened the stream, or would have
    syn: str
    rst: str
    fin: str
    none: str


# "broken" is a SYN on the wrong parity, or on a stream that is there.
FLAG_ROWS = [
    # start            own    SYN       RST        FIN       none
    Row("own", True, "broken", "abort", "end", "data"),
    Row("theirs", False, "broken", "abort", "end", "data"),
    Row("unanswered", True, "broken", "reject", "end", "data"),
    Row("offered", False, "broken", "later", "later", "later"),
    Row("withdrawn", False, "broken", "drop", "drop", "drop"),
    Row("closed", True, "broken", "cut off", "finish", "data"),
    Row("unread", True, "broken", "stop", "later", "return"),
    Row("new", False, "open", "drop", "drop", "drop"),
    Row("new", True, "broken", "drop", "drop", "drop"),
    Row("finished", True, "broken", "drop", "drop", "drop"),
    Row("theirs finished", False, "open again", "drop", "drop", "drop"),
    Row("reset here", True, "broken", "drop", "drop", "drop"),
    Row("going away", False, "refuse", "drop", "drop", "drop"),
]


def flag_end(effect: str, row: Row, stream_id: int, body: bytes) -> Broken | Taken:
    data = (DataReceived(stream_id, body),) if body else ()
    aborts = StreamAborted(stream_id, 0, False, "")
    stops, finishes = WriteStopped(stream_id, 0), StreamFinished(stream_id)
    rejects = StreamRejected(stream_id, 0, "the peer refused it")
    ends: dict[str, Broken | Taken] = {
        "broken": wrong_opening(stream_id, WRONG_PARITY if row.own else STILL_OPEN),
        "abort": Taken((aborts, stops, finishes)),
        "reject": Taken((rejects, finishes)),
        "cut off": Taken((aborts, finishes)),
        "stop": Taken((stops, finishes)),
        "end": Taken((*data, StreamEnded(stream_id))),
        "finish": Taken((*data, StreamEnded(stream_id), finishes)),
        "data": Taken(data) if body or row.start == "unanswered" else IGNORED,
        "return": Taken() if body else IGNORED,
        "later": Taken(),
        "drop": Taken(adds={"_late_allowance": -len(body)}),
        "nothing": IGNORED,
        "open": Taken((StreamOpened(stream_id),)),
        "open again": Taken((StreamOpened(stream_id + 2**64),)),
        "refuse": Taken(sends=(window(stream_id, 0, RST),)),
    }
    return ends[effect]


def all_flags() -> Iterator[Case]:
    for row in FLAG_ROWS:
        stream_id = (OWN if row.own else THEIRS)[SERVER]
        for flags in FLAGS:
            order = ((SYN, row.syn), (RST, row.rst), (FIN, row.fin))
            effect = next((found for flag, found in order if flags & flag), row.none)
            if flags & SYN and flags & RST and effect != "broken":
                effect = "nothing"  # is opened, and the body belongs to no stream
            for kind, body in ((WINDOW, b""), (DATA, b"abc")):
                end = flag_end(effect, row, stream_id, body)
                name = f"{NAMES[kind]} with flags {flags}, stream {stream_id}, {row.start}"
                wire = head(kind, flags, stream_id, len(body)) + body
                yield Case(name, row.start, wire, end, SERVER)


def pings() -> Iterator[Case]:
    for flags in FLAGS:
        for value in (0, LARGEST):
            answer = (head(PING, ACK, 0, value),)
            end = Taken(sends=answer) if flags & SYN else IGNORED
            yield Case(f"ping {value}, flags {flags}", "new", head(PING, flags, 0, value), end)
    other_pong = head(PING, ACK, 0, 6)
    yield Case("pong of another value", "pinging", other_pong, IGNORED)
    pongs = Taken((PongReceived(None, 5),))
    yield Case("pong twice", "pinging", 2 * head(PING, ACK, 0, 5), pongs)


def goodbyes() -> Iterator[Case]:
    meanings = {1: "protocol error", 2: "internal error"}
    for code in (1, 2, 3, 4, 8, 255, 256, 65535, 65536, 2**31, LARGEST):
        for flags in (0, SYN, ACK | FIN):
            meaning = meanings.get(code, "unknown")
            sentence = f"the peer ended the connection with GO_AWAY code {code} ({meaning})"
            end = Broken(RemoteProtocolError, sentence, 1002 if code == 1 else 1011, sends=())
            name = f"GO_AWAY {code}, flags {flags}"
            yield Case(name, "own", head(GO_AWAY, flags, 0, code), end)
    for role in ROLES:
        for flags in FLAGS:
            end = Taken((GoAwayReceived(OWN[role] + 2, 0),))
            wire = head(GO_AWAY, flags, 0, 0)
            yield Case(f"GO_AWAY 0, flags {flags}, {role}", "own", wire, end, role)
        end = Taken((GoAwayReceived(OWN[role], 0),))
        twice = 2 * head(GO_AWAY, 0, 0, 0)
        yield Case(f"GO_AWAY twice, {role}", "unanswered", twice, end, role)


# Openings


def openings() -> Iterator[Case]:
    for role in ROLES:
        own, theirs = OWN[role], THEIRS[role]
        for kind, length in ((DATA, 0), (WINDOW, 3)):
            for stream_id in (own, own + 6, LARGEST - (role is SERVER)):
                end = wrong_opening(stream_id, WRONG_PARITY)
                name = f"{NAMES[kind]} opens {stream_id}, {role}"
                yield Case(name, "new", head(kind, SYN, stream_id, length), end, role)
            for start in ("theirs", "offered", "withdrawn", "theirs ended", "one at most"):
                name = f"{NAMES[kind]} opens again, {start}, {role}"
                end = wrong_opening(theirs, STILL_OPEN)
                yield Case(name, start, head(kind, SYN, theirs, length), end, role)
            highest = LARGEST - (role is CLIENT)
            for stream_id in (theirs, theirs + 100, highest):
                name = f"{NAMES[kind]} opens {stream_id} out of order, {role}"
                start = "new" if stream_id != theirs else "theirs finished"
                fresh = Taken((StreamOpened(stream_id if start == "new" else stream_id + 2**64),))
                yield Case(name, start, head(kind, SYN, stream_id, length), fresh, role)
            for start in ("one at most", "going away"):
                refused = Taken(sends=(window(theirs + 2, 0, RST),))
                name = f"{NAMES[kind]} opens, {start}, {role}"
                yield Case(name, start, head(kind, SYN, theirs + 2, length), refused, role)


def cve_2026_32314() -> Iterator[Case]:
    """A first frame above the window, which rust-yamux registered before it looked at the size."""
    for role in ROLES:
        stream_id = THEIRS[role]
        for length in (INITIAL + 1, 300_000, LONGEST_FRAME, LONGEST_FRAME + 1, LARGEST):
            for flags in (SYN, SYN | ACK, SYN | FIN, SYN | RST, SYN | ACK | FIN | RST):
                name = f"opening with {length} bytes, flags {flags}, {role}"
                end = too_much(length, INITIAL, stream_id)
                yield Case(name, "new", head(DATA, flags, stream_id, length), end, role)
    for start in ("one at most", "going away"):
        end = too_much(INITIAL + 1, INITIAL, 3)
        yield Case(f"one too long, {start}", start, head(DATA, SYN, 3, INITIAL + 1), end, SERVER)
    taken = Taken((StreamOpened(2),))
    whole = head(DATA, SYN, 2, INITIAL) + bytes(INITIAL)
    yield Case(f"opening with {INITIAL} bytes", "new", whole, taken)


# Credit that the peer gives


def cve_2026_31814() -> Iterator[Case]:
    """Credit above 32 bits, which rust-yamux added without looking."""
    for role in ROLES:
        stream_id = THEIRS[role]
        for flags in (SYN, SYN | ACK, SYN | FIN, SYN | ACK | FIN):
            for delta in (MOST_CREDIT + 1, LARGEST):
                name = f"opening with {delta} of credit, flags {flags}, {role}"
                wire = window(stream_id, delta, flags)
                yield Case(name, "new", wire, overflow(delta, INITIAL), role)
        most = Taken((StreamOpened(stream_id),), credit=LARGEST)
        name = f"opening with {MOST_CREDIT} of credit, {role}"
        yield Case(name, "new", window(stream_id, MOST_CREDIT, SYN), most, role)
    for start in ("own", "unanswered", "ended", "closed", "unread", "theirs", "offered"):
        stream_id = (THEIRS if start in ("theirs", "offered") else OWN)[CLIENT]
        for flags in (0, ACK, FIN, ACK | FIN):
            for delta in (MOST_CREDIT + 1, LARGEST):
                name = f"{delta} of credit, flags {flags}, {start}"
                end = overflow(delta, INITIAL)
                yield Case(name, start, window(stream_id, delta, flags), end)
        if start != "closed":  # has none to use
            name = f"{MOST_CREDIT} of credit, {start}"
            yield Case(name, start, window(stream_id, MOST_CREDIT), Taken(credit=LARGEST))
        else:
            yield Case("credit behind the own end", start, window(stream_id, 5), Taken(credit=0))
    for delta in (1, LARGEST):
        yield Case(
            f"{delta} on the full credit", "full credit", window(1, delta), overflow(delta, LARGEST)
        )
    yield Case("0 on the full credit", "full credit", window(1, 0), IGNORED)
    left = INITIAL - 1000
    end = overflow(LARGEST - left + 1, left)
    yield Case("one too many after 1000", "1000 spent", window(1, LARGEST - left + 1), end)
    full = Taken(credit=LARGEST)
    yield Case("as many as fit after 1000", "1000 spent", window(1, LARGEST - left), full)
    for flags in (RST, RST | ACK, RST | FIN):
        for code in (1, MOST_CREDIT + 1, LARGEST):
            name = f"the code {code} of a reset, flags {flags}, is not credit"
            yield Case(name, "own", window(1, code, flags), aborted(1, code))
    for flags in (0, ACK, FIN, RST):
        for stream_id in (7, 8):
            wire = window(stream_id, LARGEST, flags)
            yield Case(f"credit for no stream {stream_id}, flags {flags}", "new", wire, IGNORED)


# Credit that the peer uses


def over_credit() -> Iterator[Case]:
    for start in ("own", "theirs", "unanswered", "offered", "closed", "unread"):
        stream_id = (THEIRS if start in ("theirs", "offered") else OWN)[SERVER]
        for length in (INITIAL + 1, LONGEST_FRAME, LONGEST_FRAME + 1, LARGEST):
            for flags in (0, ACK, FIN, RST):
                name = f"{length} bytes, flags {flags}, {start}"
                wire = head(DATA, flags, stream_id, length)
                yield Case(name, start, wire, too_much(length, INITIAL, stream_id), SERVER)
    yield Case("two with one", "one byte left", head(DATA, 0, 1, 2), too_much(2, 1, 1))
    yield Case("one with none", "no byte left", head(DATA, 0, 1, 1), too_much(1, 0, 1))
    last = Taken((DataReceived(1, b"x"),))
    yield Case("one with one", "one byte left", data_frame(1, b"x"), last)
    yield Case("none with none", "no byte left", data_frame(1), IGNORED)
    length = LONGEST_FRAME + 1
    yield Case("above 16 MiB with credit", "wide", head(DATA, 0, 1, length), too_much(length, 0, 1))
    for start in ("ended", "theirs ended", "unread, ended", "ended, unread"):
        stream_id = (THEIRS if start == "theirs ended" else OWN)[CLIENT]
        for length in (1, INITIAL):
            for flags in (0, ACK, FIN):
                name = f"{length} bytes with flags {flags} behind the end, {start}"
                end = Broken(StreamIdError, f"data on stream {stream_id} after its FIN")
                yield Case(name, start, head(DATA, flags, stream_id, length), end)
        yield Case(f"nothing behind the end, {start}", start, data_frame(stream_id), IGNORED)
        again = window(stream_id, 0, FIN)
        yield Case(f"a second end, {start}", start, again, IGNORED)


def no_stream() -> Iterator[Case]:
    """Streams that are not there take what an honest peer can have had under way, and drop it."""
    where = ", which is not open"
    under_way = 2 * INITIAL - 100  # what is always allowed, and what the stream had left
    rows = [
        ("new", INITIAL),
        ("one byte to drop", 1),
        ("finished", INITIAL),
        ("reset here", under_way),
        ("reset there", under_way),
        ("one refused", under_way),
        ("one refused with credit", 2 * INITIAL),
    ]
    for start, most in rows:
        for stream_id in (1, 2, 7, LARGEST):
            wire = head(DATA, 0, stream_id, most + 1)
            end: Broken | Taken = too_much(most + 1, most, stream_id, where)
            yield Case(f"one too many for no stream {stream_id}, {start}", start, wire, end)
            for length in (LONGEST_FRAME + 1, LARGEST):
                wire = head(DATA, 0, stream_id, length)
                name = f"{length} for no stream {stream_id}, {start}"
                yield Case(name, start, wire, too_much(length, most, stream_id, where))
        wire = head(DATA, 0, 7, most) + bytes(most)
        dropped = Taken(adds={"_late_allowance": -most})
        yield Case(f"all of it for no stream, {start}", start, wire, dropped)


TABLES = [
    versions, types, undefined_bits, wrong_scopes, cuts, several, all_flags, pings, goodbyes,
    openings, cve_2026_32314, cve_2026_31814, over_credit, no_stream,
]  # fmt: skip
CASES = [case for table in TABLES for case in table()]


def test_every_table_has_cases_and_no_two_are_the_same() -> None:
    assert all(any(table()) for table in TABLES)
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    different = {(case.start, case.role, case.first, case.wire) for case in CASES}
    assert len(different) == len(CASES)


def feed(machine: YamuxProtocol, wire: bytes, step: int) -> None:
    for start in range(0, len(wire), step):
        machine.receive_data(wire[start : start + step])


def remembered(machine: YamuxProtocol) -> dict[str, Any]:
    state = snapshot(machine)
    state |= state.pop("_reader")
    del state["_keep"]  # it belongs to a head, and the next one sets it
    return state


def settled(case: Case) -> YamuxProtocol:
    machine = STARTS[case.start](case.role)
    machine.events()
    outbox(machine)
    return machine


@each_row(CASES, name=lambda case: case.name)
def test_case_of_the_tables(case: Case) -> None:
    for step in (max(len(case.first + case.wire), 1), 1):
        if step == 1 and len(case.wire) > KIB:
            step = 64 * KIB - 1
        machine, twin = settled(case), settled(case)
        feed(twin, case.first, max(len(case.first), 1))
        if isinstance(case.end, Broken):
            check_broken(machine, twin, case, case.end, step)
        else:
            feed(machine, case.first + case.wire, step)
            check_taken(machine, twin, case, case.end)


def check_broken(
    machine: YamuxProtocol, twin: YamuxProtocol, case: Case, end: Broken, step: int
) -> None:
    with pytest.raises(end.error) as caught:
        feed(machine, case.first + case.wire, step)
    assert type(caught.value) is end.error
    assert (str(caught.value), caught.value.code) == (end.sentence, end.code)
    assert caught.value.ended_by == ("local" if end.sends else "remote")
    assert len(end.sentence.encode()) <= LONGEST_REASON
    assert machine.events() == twin.events()
    assert outbox(machine) == [*outbox(twin), *end.sends]
    assert remembered(machine) == remembered(twin)


def check_taken(machine: YamuxProtocol, twin: YamuxProtocol, case: Case, end: Taken) -> None:
    assert machine.events() == list(end.events)
    assert outbox(machine) == list(end.sends)
    if end.credit is not None:
        assert machine.credit(int.from_bytes(case.wire[4:8], "big")) == end.credit
    if end.adds is None:
        return
    found, expected = remembered(machine), remembered(twin)
    expected |= {name: expected[name] + value for name, value in end.adds.items()}
    assert found.pop("empty_messages") - expected.pop("empty_messages") in (0, 1)
    assert found == expected


# What is held

SMALL = KIB  # what a frame without a body may cost


@pytest.mark.parametrize(
    ("start", "wire"),
    [
        ("own", head(DATA, 0, 1, INITIAL + 1)),
        ("new", head(DATA, SYN, 2, INITIAL + 1)),
        ("new", head(DATA, SYN, 2, LARGEST)),
        ("new", head(DATA, 0, 9, INITIAL + 1)),
        ("own", window(1, LARGEST)),
        ("new", window(2, LARGEST, SYN)),
    ],
    ids=["data", "opening", "4-gib", "no-stream", "credit", "credit-of-opening"],
)
def test_excess_is_refused_by_its_head_and_nothing_is_held(start: str, wire: bytes) -> None:
    machine = STARTS[start](CLIENT)
    before = held(machine)
    with pytest.raises(RemoteProtocolError):
        machine.receive_data(wire)
    assert held(machine) - before < SMALL


@pytest.mark.parametrize(("start", "flags", "stream_id"), [("own", 0, 1), ("new", SYN, 2)])
def test_memory_for_a_body_is_not_taken_before_it_comes(
    start: str, flags: int, stream_id: int
) -> None:
    machine = STARTS[start](CLIENT)
    before = held(machine)
    machine.receive_data(head(DATA, flags, stream_id, INITIAL))
    assert held(machine) - before < SMALL
    machine.receive_data(bytes(1000))
    assert 1000 <= held(machine) - before < 2000 + SMALL


@pytest.mark.parametrize(("start", "stream_id"), [("unread", 1), ("new", 9), ("finished", 1)])
def test_a_body_without_a_reader_is_not_held(start: str, stream_id: int) -> None:
    machine = STARTS[start](CLIENT)
    before = held(machine)
    machine.receive_data(head(DATA, 0, stream_id, INITIAL))
    for _ in range(4):
        machine.receive_data(bytes(INITIAL // 4 - 1))
        assert held(machine) - before < SMALL


# Floods. The machine holds nothing for those of the first table. What changes nothing and costs the
# peer nothing ends the connection in the end; answers that wait are counted by the owner.

FLOODS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "empty data": ("own", lambda n: data_frame(1)),
    "zero updates": ("own", lambda n: window(1)),
    "updates of 1 byte": ("own", lambda n: window(1, 1)),
    "repeated ACK": ("own", lambda n: window(1, 0, ACK)),
    "repeated FIN": ("ended", lambda n: window(1, 0, FIN)),
    "empty data before acceptance": ("offered", lambda n: data_frame(2) + window(2)),
    "pings": ("new", lambda n: head(PING, SYN, 0, n)),
    "pings without flags": ("new", lambda n: head(PING, 0, 0, n)),
    "pongs": ("new", lambda n: head(PING, ACK, 0, n)),
    "pongs while one is awaited": ("pinging", lambda n: head(PING, ACK, 0, n + 10)),
    "GO_AWAY": ("new", lambda n: head(GO_AWAY, 0, 0, 0)),
    "empty data for no stream": ("new", lambda n: data_frame(n + 9)),
    "updates for no stream": ("new", lambda n: window(n + 9, LARGEST)),
    "resets of no stream": ("new", lambda n: window(n + 9, 0, RST)),
    "ends of no stream": ("new", lambda n: window(n + 9, 0, FIN)),
    "SYN with RST": ("new", lambda n: data_frame(2 * n + 2, b"xyz", SYN | RST)),
    "data for nobody, within credit": ("unread", lambda n: data_frame(1, bytes(100))),
}
ANSWERED_FLOODS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "open and reset": ("new", lambda n: window(2 * n + 2, 0, SYN) + window(2 * n + 2, 0, RST)),
    "open and end": ("new", lambda n: data_frame(2 * n + 2, b"x", SYN | FIN)),
    "open beyond the limit": ("one at most", lambda n: window(2 * n + 4, 0, SYN)),
    "open behind the goodbye": ("going away", lambda n: data_frame(2 * n + 2, b"x", SYN)),
}


def patient(start: str) -> YamuxProtocol:
    """Return a machine that bears more than the floods of these tests."""
    machine = STARTS[start](CLIENT)
    lift_budgets(machine)
    return machine


def flood(machine: YamuxProtocol, frame: Callable[[int], bytes], rounds: range) -> None:
    """Feed frames in messages of 50, each followed by an owner who takes and closes everything."""
    for start in rounds[::50]:
        machine.receive_data(b"".join(frame(start + i) for i in range(50)))
        for event in machine.events():
            if isinstance(event, StreamOpened):
                machine.accept(event.stream_id, INITIAL)
                machine.close_write(event.stream_id, 0.0)
        machine.events()
        outbox(machine)


@each_case
@pytest.mark.parametrize("name", [*FLOODS, *ANSWERED_FLOODS])
def test_a_flood_leaves_nothing_behind(name: str) -> None:
    start, frame = (FLOODS | ANSWERED_FLOODS)[name]
    machine = patient(start)
    flood(machine, frame, range(500))
    before = held(machine)
    flood(machine, frame, range(500, 2000))
    assert abs(held(machine) - before) < SMALL


@each_case
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_in_one_message_is_not_held(name: str) -> None:
    start, frame = FLOODS[name]
    machine = patient(start)
    before = held(machine)
    machine.receive_data(b"".join(frame(i) for i in range(1000)))
    assert held(machine) - before < 2 * KIB  # 32 answers to pings are the most


def test_open_and_reset_in_one_message_is_held_up_to_the_limit_of_streams() -> None:
    machine = new(CLIENT, max_streams=3)
    _, frame = ANSWERED_FLOODS["open and reset"]
    machine.receive_data(b"".join(frame(i) for i in range(100)))
    assert machine.events() == [StreamOpened(stream_id) for stream_id in (2, 4, 6)]
    assert outbox(machine) == [b"".join(window(2 * n + 2, 0, RST) for n in range(3, 100))]


@each_case
@pytest.mark.parametrize(
    "name",
    ["empty data", "zero updates", "repeated ACK", "repeated FIN", "empty data before acceptance"]
    + ["GO_AWAY", "empty data for no stream", "SYN with RST", "pings without flags", "pongs"],
)
def test_a_flood_of_what_changes_nothing_ends_the_connection(name: str) -> None:
    start, frame = FLOODS[name]
    machine = STARTS[start](CLIENT)
    outbox(machine)
    with pytest.raises(FrameError, match="too many frames that change nothing: C") as caught:
        machine.receive_data(b"".join(frame(i) for i in range(130)))
    assert caught.value.code == 1008
    assert machine.empty_messages == machine.config.max_empty_frames == 128
    assert outbox(machine) == [BROKEN]


# How many of each a machine bears at once, and what it says of the next.
BORNE: dict[str, tuple[str, Callable[[int], bytes], int, str]] = {
    "pings": (
        "new", lambda n: head(PING, SYN, 0, n),
        128, "pings beyond what its data earns: Config.max_pings is 128",
    ),
    "credit": (
        "own", lambda n: window(1, 1),
        7, "grants of credit for the data sent: Config.max_updates_per_frame is 10",
    ),
    "credit for no stream": (
        "own", lambda n: window(9, 1),
        7, "grants of credit for the data sent: Config.max_updates_per_frame is 10",
    ),
    "ends of no stream": (
        "own", lambda n: window(9, 0, FIN),
        132, "frames for what has ended: Config.max_empty_frames is 128",
    ),
    "resets of its own streams": (
        "new", lambda n: window(2 * n + 2, 0, SYN) + window(2 * n + 2, 0, RST),
        1000, "resets: Config.max_resets is 1000",
    ),
    "openings that are refused": (
        "going away", lambda n: window(2 * n + 2, 0, SYN),
        1001, "streams that had to be refused: Config.max_resets is 1000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BORNE)
def test_a_flood_ends_the_connection_at_its_limit(name: str) -> None:
    start, frame, borne, sentence = BORNE[name]
    machine = STARTS[start](CLIENT)
    for n in range(borne):
        machine.receive_data(frame(n))
        for event in machine.events():
            if isinstance(event, StreamOpened):
                machine.accept(event.stream_id, INITIAL)
    with pytest.raises(FrameError) as caught:
        machine.receive_data(frame(borne))
    assert (str(caught.value), caught.value.code) == (f"too many {sentence}", 1008)


def test_streams_that_the_owner_refuses_are_limited() -> None:
    machine = new(SERVER, max_resets=2)
    for stream_id in (1, 3, 5):
        machine.receive_data(window(stream_id, 0, SYN))
        machine.refuse(stream_id, 0)
    with pytest.raises(
        FrameError, match=r"streams that had to be refused: Config\.max_resets is 2"
    ):
        machine.receive_data(window(7, 0, SYN))


def test_a_peer_may_reset_every_stream_of_this_side() -> None:
    machine = new(CLIENT, max_resets=2)
    for _ in range(5):
        machine.receive_data(window(machine.open_stream(), 0, RST))
    assert machine.open_streams() == 0


def test_data_that_was_sent_earns_the_peer_updates() -> None:
    machine = local(CLIENT, *([window(1, 1)] * 7))
    machine.send_data(1, b"x")
    machine.receive_data(window(1, 1) * 20)
    with pytest.raises(FrameError, match="too many grants of credit"):
        machine.receive_data(window(1, 1))


def test_what_changes_nothing_is_forgiven_in_time() -> None:
    machine = STARTS["own"](CLIENT)
    for second in range(5, 50, 5):
        machine.now = float(second)
        machine.receive_data(data_frame(1) * 128)
    with pytest.raises(FrameError, match="too many frames that change nothing"):
        machine.receive_data(data_frame(1))


def test_data_for_no_stream_ends_the_connection_at_256_kib() -> None:
    machine = new(CLIENT)
    for stream_id in range(INITIAL // KIB):
        machine.receive_data(data_frame(stream_id + 9, bytes(KIB)))
    with pytest.raises(FlowControlError, match="1 bytes with 0 bytes of credit on stream 8, which"):
        machine.receive_data(data_frame(8, b"x"))
