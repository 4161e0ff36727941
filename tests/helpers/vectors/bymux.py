"""Conversations written by hand, from the Bymux text and the worked examples drawn from it.

``>`` is what the machine under test receives, ``<`` what it sends for that, control before data.
``P`` has even ids (the client), ``R`` odd ones (the server). What was sent and stands nowhere is
not the subject: mostly the first grant.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from wsmux.protocols.base import Role
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

P, R = Role.CLIENT, Role.SERVER

WINDOW = 1024


class Call(NamedTuple):
    """A call of the machine's owner."""

    name: str
    arguments: tuple[Any, ...] = ()


class Conversation(NamedTuple):
    """``steps`` are received bytes, calls, or expected bytes; ``error`` ends the last step."""

    role: Role
    steps: list[str | Call]
    events: list[Event]
    error: str = ""


OPEN = Call("open_stream")

CONVERSATIONS = {
    "first grant": Conversation(P, ["<11 0400"], []),
    "global credit 16": Conversation(P, [">10 10"], [OpenPermitted()]),
    "global credit with id width bits": Conversation(P, [">1c 10"], [OpenPermitted()]),
    "P opens stream 0": Conversation(R, [">30 00", "<01 00 0400"], [StreamOpened(0)]),
    "P opens stream 0 with id width bits": Conversation(R, [">3c 00"], [StreamOpened(0)]),
    "R opens stream 1": Conversation(P, [">30 01", "<01 01 0400"], [StreamOpened(1)]),
    "wrong parity from P": Conversation(
        R, [">30 01"], [], "the peer opened stream 1, an id of this side"
    ),
    "P opens 65536": Conversation(R, [">32 00010000", "<09 00010000 0400"], [StreamOpened(65536)]),
    "P opens stream 258 in a wide form": Conversation(
        R, [">33 0000000000000102", "<05 0102 0400"], [StreamOpened(258)]
    ),
    "opening sent": Conversation(P, [">10 01", OPEN, "<30 00 01 00 0400"], [OpenPermitted()]),
    "second opening of R sent": Conversation(
        R,
        [">10 02", OPEN, "<30 01 01 01 0400", OPEN, "<30 03 01 03 0400"],
        [OpenPermitted()],
    ),
    "hello": Conversation(
        R, [">30 00", ">20 00 05 68656c6c6f"], [StreamOpened(0), DataReceived(0, b"hello")]
    ),
    "300 bytes on stream 258": Conversation(
        R,
        [">31 0102", ">25 0102 012c" + 300 * "61"],
        [StreamOpened(258), DataReceived(258, 300 * b"a")],
    ),
    "A in the widest form": Conversation(
        R,
        [">30 00", ">2c 0000000000000000 01 41"],
        [StreamOpened(0), DataReceived(0, b"A")],
    ),
    "write sent": Conversation(
        R,
        [
            ">30 00 00 00 05",
            "<01 00 0400",
            Call("send_data", (0, b"hello!")),
            "<20 00 05 68656c6c6f",
        ],
        [StreamOpened(0), CreditGranted(0)],
    ),
    "long write sent": Conversation(
        R,
        [
            ">30 00 01 00 012c",
            "<01 00 0400",
            Call("send_data", (0, 300 * b"a")),
            "<21 00 012c" + 300 * "61",
        ],
        [StreamOpened(0), CreditGranted(0)],
    ),
    "write of nothing": Conversation(R, [">30 00 20 00 00"], [StreamOpened(0)]),
    "infinite credit twice": Conversation(
        R, [">30 02 00 02 00 00 02 00"], [StreamOpened(2), CreditGranted(2)]
    ),
    "credit behind infinite credit": Conversation(
        R,
        [">30 02 00 02 00 00 02 01"],
        [StreamOpened(2), CreditGranted(2)],
        "Credit of 1 for stream 2, whose credit is infinite",
    ),
    "infinite by the sum": Conversation(
        R,
        [">30 02 00 02 01 03 02 fffffffffffffffe 00 02 00"],
        [StreamOpened(2), CreditGranted(2)],
    ),
    "ping of stream 3": Conversation(
        P, [">30 03", "<01 03 0400", ">40 03", "<60 03"], [StreamOpened(3)]
    ),
    "global ping": Conversation(P, [">50", "<70"], []),
    "global ping with bits": Conversation(P, [">5f", "<70"], []),
    "unasked pong": Conversation(P, [">30 03", ">60 03 70"], [StreamOpened(3)]),
    "ping without a stream": Conversation(
        P, [">40 09"], [], "Ping on stream 9, which is not active"
    ),
    "close and answer": Conversation(
        R,
        [">30 00", "<01 00 0400", ">80 00", "<a0 00"],
        [StreamOpened(0), StreamEnded(0)],
    ),
    "stop and answer": Conversation(
        R,
        [">30 00", "<01 00 0400", ">a0 00", "<80 00"],
        [StreamOpened(0), WriteStopped(0, None)],
    ),
    "whole life of a stream, and the next on its id": Conversation(
        R,
        [
            ">30 00",
            "<01 00 0400",
            ">80 00",
            "<a0 00",
            Call("close_write", (0, 0.0)),
            "<80 00",
            ">a0 00",
            ">30 00",
            "<01 00 0400",
        ],
        [StreamOpened(0), StreamEnded(0), StreamFinished(0), StreamOpened(2**64)],
    ),
    "id taken while it lives": Conversation(
        R,
        [">30 00", ">80 00", ">30 00"],
        [StreamOpened(0), StreamEnded(0)],
        "the peer opened stream 0, which is active",
    ),
    "credit returned": Conversation(
        R,
        [
            ">30 00",
            "<01 00 0400",
            ">21 00 0200" + 512 * "61",
            Call("consumed", (0, 512)),
            "<01 00 0200",
        ],
        [StreamOpened(0), DataReceived(0, 512 * b"a")],
    ),
    "global close": Conversation(P, [">90", "<b0"], []),
    "global stop": Conversation(P, [">b0", "<90"], [GoAwayReceived(0, 0)]),
    "opening behind a global close": Conversation(
        R, [">90", ">30 04"], [], "global Write after the same side's global Close"
    ),
    "credit behind a global stop": Conversation(
        R,
        [">b0", ">10 01"],
        [GoAwayReceived(1, 0)],
        "global Credit after the same side's global StopRead",
    ),
    "going away with an opening on its way": Conversation(
        R, [Call("go_away", (0,)), "<90 b0", ">30 00", "<a0 00 80 00"], [OpenPermitted()]
    ),
    "undefined type": Conversation(P, [">d0"], [], "packet of the undefined type 6"),
}
