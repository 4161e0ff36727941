"""Each wrong message to a server gets the reaction beside it; other calls and sessions go on.

Every row is sent by hand in a session that has a call ``other`` open. Reactions:

- ``refused``: its stream is cancelled with INVALID_REQUEST; nothing else.
- ``ignored``: nothing comes back.
- ``cut``: the connection is closed, the session can be resumed.
- ``destroyed``: the connection is closed, the session is gone, its handlers hear of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgpack
import pytest

from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.raw_river import (
    ACK,
    CANCEL,
    CLOSE,
    CLOSED,
    NO_CANCEL,
    OPEN,
    Fields,
    RawRiver,
    cancel,
)
from ..helpers.rpc.standing_server import Stand, no_exceptions, stand
from ..helpers.tables import each_case

Reaction = Callable[[Stand, RawRiver, str], None]

LARGEST = 2**53 - 1


@pytest.fixture(
    scope="module",
    params=[("json", True), ("msgpack", False)],
    ids=["json-websocket", "msgpack-tcp"],
)
def standing(request: pytest.FixtureRequest) -> Iterator[Stand]:
    codec, websocket = request.param
    with stand(codec, websocket=websocket) as made:
        yield made


def refused(text: str, stream: str = "s") -> Reaction:
    def check(standing: Stand, peer: RawRiver, name: str) -> None:
        standing.check_refused(peer, stream, text)
        standing.check_lives(peer)

    return check


def refused_call(text: str, error: str) -> Reaction:
    """Refuse a message of a call whose label is ``call``, and tell its handler."""

    def check(standing: Stand, peer: RawRiver, name: str) -> None:
        standing.check_refused(peer, "s", text)
        standing.witness.notes["call"].check_lost(error)
        standing.check_lives(peer)

    return check


def ignored(standing: Stand, peer: RawRiver, name: str) -> None:
    standing.check_lives(peer)


def cut(standing: Stand, peer: RawRiver, name: str) -> None:
    standing.check_cut(peer, name)


def destroyed(standing: Stand, peer: RawRiver, name: str) -> None:
    standing.check_destroyed(peer, name)


def answered(value: Any, flags: int = CLOSED) -> Reaction:
    def check(standing: Stand, peer: RawRiver, name: str) -> None:
        standing.check_answered(peer, "s", value, flags)
        standing.check_lives(peer)

    return check


class Row(NamedTuple):
    """What is sent, message by message, and what comes of it."""

    name: str
    messages: list[Fields]
    reaction: Reaction


def message(payload: Any = "data", flags: int = 0, stream: str = "s", **fields: Any) -> Fields:
    return {"streamId": stream, "controlFlags": flags, "payload": payload} | fields


def opens(
    procedure: Any = "same", payload: Any = None, flags: int = OPEN | CLOSED, **fields: Any
) -> Fields:
    names = {"serviceName": "test", "procedureName": procedure}
    return message(payload, flags, **names) | fields


NOBODY = "no call is open on stream s, and the message opens none"
BEHIND = "received a message after the end of requests"
NO_REQUESTS = "which takes no requests"

# Names that other languages find in any object, and some that are nearly right.
NAMES = {
    "empty": "",
    "dunder_class": "__class__",
    "dunder_init": "__init__",
    "dunder_dict": "__dict__",
    "proto": "__proto__",
    "to_string": "toString",
    "constructor": "constructor",
    "has_own_property": "hasOwnProperty",
    "other_case": "Test",
    "space": "test ",
    "dotted": "test.same",
    "nul": "te\0st",
    "no_ascii": "tést",
    "long": "x" * 10**5,
}


def unknown_streams() -> Iterator[Row]:
    for kind, flags in {"data": 0, "close": CLOSED, "cancel": CANCEL, "unknown_flag": 16}.items():
        yield Row(f"unknown_stream-{kind}", [message(CLOSE, flags)], refused(NOBODY))
    yield Row("unknown_stream-cancel_and_close", [message(cancel(), 12)], refused(NOBODY))
    yield Row("unknown_stream-open_and_cancel", [opens(flags=OPEN | CANCEL)], refused(NOBODY))
    yield Row("unknown_stream-twice", [message(), message(CLOSE, CLOSED)], refused(NOBODY))
    text = "no call is open on stream heartbeat"
    beat = message(stream="heartbeat")
    yield Row("unknown_stream-heartbeat_without_flag", [beat], refused(text, "heartbeat"))
    text = "no call is open on stream , and"
    yield Row("unknown_stream-empty", [message(stream="")], refused(text, ""))
    long = "x" * 1024
    yield Row("unknown_stream-long", [message(stream=long)], refused("no call is open", long))
    for size in (1025, 10**5):
        yield Row(f"stream_id_of_{size}", [message(stream="x" * size)], destroyed)
        yield Row(f"open_with_stream_id_of_{size}", [opens(streamId="x" * size)], destroyed)


def opening() -> Iterator[Row]:
    no_service, no_procedure = opens(serviceName=...), opens(procedureName=...)
    yield Row("open_without_service", [no_service], refused("missing service name"))
    yield Row("open_without_procedure", [no_procedure], refused("missing procedure name"))
    yield Row("open_without_names", [no_service | {"procedureName": ...}], refused("missing"))
    for kind, name in NAMES.items():
        wrong = opens(serviceName=name)
        yield Row(f"unknown_service-{kind}", [wrong], refused("couldn't find service"))
        if kind != "dunder_class":
            wrong = opens(name)
            yield Row(f"unknown_procedure-{kind}", [wrong], refused("couldn't find a procedure"))
    yield Row("procedure_named_dunder_class", [opens("__class__")], answered("found by its name"))
    for kind, init in {
        "null": None,
        "empty": {},
        "array": [],
        "text": "1",
        "number": 1,
        "text_as_number": {"n": "1"},
        "null_as_number": {"n": None},
        "true_as_number": {"n": True},
        "array_as_number": {"n": [1]},
        "nested_as_number": {"n": {"n": 1}},
        "other_case": {"N": 1},
    }.items():
        wrong = opens("add", init)
        yield Row(f"init-{kind}", [wrong], refused("procedure init failed validation"))
    for number in (1, 1.5, 0, -1, LARGEST - 1, -LARGEST):
        yield Row(f"init-of-{number}", [opens("add", {"n": number})], answered(number + 1))


def requests() -> Iterator[Row]:
    call = opens("waits", "call")
    ended = refused_call(BEHIND, "ended")
    yield Row("request_to_rpc", [call, message()], ended)
    yield Row("close_of_rpc", [call, message(CLOSE, CLOSED)], ended)
    yield Row("open_again", [call, call], ended)
    half = opens("waits", "call", OPEN)
    yield Row("request_to_open_rpc", [half, message()], refused_call(NO_REQUESTS, "ended"))
    yield Row("rpc_without_closed_bit", [opens("same", 5, OPEN)], answered(5))
    watch = opens("count", 0, OPEN)
    close = message(CLOSE, CLOSED)
    yield Row("close_of_subscription", [watch, close], lambda s, p, n: s.check_closed(p, "s"))
    total = opens("total", "call", OPEN)
    for kind, value in {
        "text": "1",
        "null": None,
        "true": True,
        "array": [],
        "object": {"n": 1},
        "nearly_close": {"type": "CLOSE", "ok": True},
        "close_in_lower_case": {"type": "close"},
    }.items():
        wrong = refused_call("message in request failed validation", "INVALID_REQUEST")
        yield Row(f"request-{kind}", [total, message(1), message(value)], wrong)
        yield Row(f"last_request-{kind}", [total, message(value, CLOSED)], wrong)
    yield Row("last_request_with_data", [total, message(1), message(2, CLOSED)], answered(3))
    yield Row("request_with_open_bit", [total, message(1, OPEN), close], answered(1))
    yield Row("request_with_unknown_bits", [total, message(1, 2**40), close], answered(1))
    named = message(1, serviceName="test", procedureName="total")
    yield Row("request_with_names", [total, named, close], answered(1))
    named = message(1, serviceName="no", procedureName="such")
    yield Row("request_with_other_names", [total, named, close], answered(1))
    for kind, late in {"request": message(1), "close": close, "open": total}.items():
        held = opens("holds", "call", OPEN)
        yield Row(f"{kind}_behind_close", [held, close, late], ended)


def acks_and_numbers() -> Iterator[Row]:
    for flags in (1, 3, 5, 9, 15, 17, LARGEST):
        row = opens("same", "never", ACK | flags)
        yield Row(f"ack_bit_with_{flags}", [row], ignored)
        yield Row(f"ack_bit_with_{flags}_to_call", [row | {"streamId": "other"}], ignored)
    yield Row("ack_with_odd_payload", [message({"type": "CLOSE"}, ACK)], ignored)
    for kind, other in {"other": "somebody", "empty": "", "own": "raw"}.items():
        yield Row(f"wrong_to-{kind}", [message(stream="other", to=other)], ignored)
        yield Row(f"wrong_to_of_open-{kind}", [opens(to=other)], ignored)
        yield Row(f"wrong_from-{kind}", [message(stream="other", **{"from": other})], destroyed)
    yield Row("wrong_from-server", [message(**{"from": "SERVER"})], destroyed)
    yield Row("wrong_from_on_ack", [message({}, ACK, **{"from": "SERVER"})], destroyed)
    for seq in (0, 1):
        yield Row(f"seq_again-{seq}", [message(stream="other", seq=seq)], ignored)
        yield Row(f"seq_again-{seq}-undecided", [message(seq=seq), opens(seq=seq)], ignored)
    for ahead in (3, 4, 100, 2**32, LARGEST):
        yield Row(f"seq_ahead-{ahead}", [message(stream="other", seq=ahead)], cut)
    for ahead in (2, 3, 1000, 2**32, LARGEST):
        yield Row(f"ack_ahead-{ahead}", [message(stream="other", ack=ahead)], destroyed)
        yield Row(f"ack_ahead-{ahead}-in_ack", [message({}, ACK, ack=ahead)], destroyed)
        yield Row(
            f"ack_ahead-{ahead}-again", [message(stream="other", ack=ahead, seq=0)], destroyed
        )
    yield Row("ack_behind", [opens("same", 1, ack=0)], answered(1))
    for kind, payload in {
        "nothing": None,
        "request": {"type": "REHANDSHAKE_REQ"},
        "other_type": {"type": "CLOSE"},
        "array": [],
    }.items():
        junk = message(payload, stream="rehandshake")
        yield Row(f"rehandshake-{kind}", [junk], destroyed)


def cancelled(procedure: str, error: str, text: str) -> Reaction:
    """Check that a call that was cancelled is over, and its handler knows why."""

    def check(standing: Stand, peer: RawRiver, name: str) -> None:
        if procedure in ("pends", "reads"):  # shipped servers close the responses nevertheless
            fields = peer.recv()
            assert (fields["streamId"], fields["controlFlags"]) == ("s", CLOSED)
            assert fields["payload"] == CLOSE
        note = standing.witness.notes["call"]
        note.check_lost("ended" if procedure == "waits" else error)
        assert note.message in ("", text)
        peer.send(message(CLOSE, CLOSED))
        standing.check_refused(peer, "s", NOBODY)
        standing.check_lives(peer)

    return check


def cancels() -> Iterator[Row]:
    kinds = {"waits": OPEN | CLOSED, "total": OPEN, "pends": OPEN | CLOSED, "reads": OPEN}
    for procedure, flags in kinds.items():
        call = opens(procedure, "call", flags)
        for code in ("CANCEL", "UNCAUGHT_ERROR", "OWN_CODE"):
            row = [call, message(cancel(code, "why"), CANCEL)]
            yield Row(f"cancel-{procedure}-{code}", row, cancelled(procedure, code, "why"))
        text = "stream cancelled, client sent invalid payload"
        for kind, payload in NO_CANCEL.items():
            row = [call, message(payload, CANCEL)]
            yield Row(f"cancel-{procedure}-{kind}", row, cancelled(procedure, "CANCEL", text))
        row = [call, message(cancel(), CANCEL | CLOSED)]
        cancels_all = cancelled(procedure, "CANCEL", "by hand")
        yield Row(f"cancel-{procedure}-with_closed_bit", row, cancels_all)
        row = [call, message(cancel(), CANCEL | OPEN)]
        yield Row(f"cancel-{procedure}-with_open_bit", row, cancels_all)


ROWS = [*unknown_streams(), *opening(), *requests(), *acks_and_numbers(), *cancels()]


def test_no_two_rows_have_one_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


@each_case
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_reaction(row: Row, standing: Stand, caplog: pytest.LogCaptureFixture) -> None:
    standing.witness.notes.pop("call", None)
    with no_exceptions(caplog), standing.attached() as (peer, name):
        for fields in row.messages:
            peer.send(fields)
            if fields["payload"] == "call":  # only handlers that run can hear of anything
                assert standing.witness.notes["call"].entered.wait(WAIT)
        row.reaction(standing, peer, name)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
def test_what_is_no_number(number: float, standing: Stand) -> None:
    """JSON has no word for it; msgpack has, but no schema takes it."""
    with standing.attached() as (peer, name):
        peer.send(opens("add", {"n": number}))
        if standing.codec == "json":
            peer.seq -= 1
            standing.check_destroyed(peer, name)
        else:
            refused("procedure init failed validation")(standing, peer, name)


@each_case
@pytest.mark.parametrize("digits", [20, 100, 4299])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_huge_integer_is_exact(sign: int, digits: int, standing: Stand) -> None:
    """It comes as a bigint, and the answer goes as one."""
    number = sign * 10**digits

    def bigint(value: int) -> Any:
        if standing.codec == "json":
            return {"$b": str(value)}
        return msgpack.ExtType(0, msgpack.packb(str(value)))

    with standing.attached() as (peer, _):
        peer.send(opens("add", {"n": bigint(number)}))
        standing.check_answered(peer, "s", bigint(number + 1))
        standing.check_lives(peer)
