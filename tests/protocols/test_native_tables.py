"""Every value that a field of a native message must not have ends the connection, in each table.

``test_native_bad_input`` has each rule by name, in every state that matters; here are all values.
Those ends are the same: one sentence, code 1002, and nothing of what the machine remembers changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from wsmux.exceptions import FlowControlError, FrameError, RemoteProtocolError, StreamIdError
from wsmux.protocols.base import Role
from wsmux.protocols.native import JS_WS, WSMUX_V1, Dialect

from ..helpers.machine_pairs import (
    ACK,
    CLOSE,
    DATA,
    ERROR,
    GO_AWAY,
    READ,
    WRITE,
    assert_ends_connection,
    id_of,
    message,
    opened,
    other,
    uint32,
)

CREDIT = 1000

# The first byte of an integer of 2, 4 and 8 bytes (RFC 9000 section 16).
WIDTHS = {2: 0x40, 4: 0x80, 8: 0xC0}

NAMES = ("DATA", "ACK", "ERROR", "CLOSE", "GO_AWAY")
DIALECTS = (WSMUX_V1, JS_WS)


class Case(NamedTuple):
    """What a machine receives that has opened its first stream, and the sentence of its end."""

    name: str
    role: Role
    dialect: Dialect
    wire: bytes
    sentence: str
    error: type[RemoteProtocolError] = FrameError


def cut_integers() -> Iterator[bytes]:
    """Make the start of an integer of each width, at every length that is too short."""
    for width, first in WIDTHS.items():
        for size in range(1, width):
            yield bytes((first,)) + bytes(size - 1)


def cut_ids() -> Iterator[Case]:
    for role in Role:
        for dialect in DIALECTS:
            for start in cut_integers():
                name = f"id {start.hex()} {role} {dialect.name}"
                yield Case(name, role, dialect, start, "message without a whole stream id")


def no_types() -> Iterator[Case]:
    for role in Role:
        for dialect in DIALECTS:
            for width, first in WIDTHS.items():
                stream_id = id_of(role)
                head = bytes((first,)) + stream_id.to_bytes(width - 1, "big")
                for size in range(dialect.type_width):
                    name = f"no type behind {width} bytes and {size} {role} {dialect.name}"
                    sentence = f"message for stream {stream_id} ends before its type"
                    yield Case(name, role, dialect, head + bytes(size), sentence)


def unknown_types() -> Iterator[Case]:
    role = Role.CLIENT
    for dialect in DIALECTS:
        first = 4 if dialect.js_ws_quirks else 5
        large = (256, 257, 258, 259, 4096, 65535) if dialect.js_ws_quirks else ()
        for kind in (*range(first, 256), *large):
            sentence = f"message for stream 0 has the unknown type {kind}"
            wire = message(0, kind, b"\0\0\0\0\0", dialect)
            yield Case(f"type {kind} {dialect.name}", role, dialect, wire, sentence)


def wrong_ack_sizes() -> Iterator[Case]:
    for role in Role:
        for dialect in DIALECTS:
            sizes = range(4) if dialect.js_ws_quirks else (*range(4), *range(5, 17))
            for size in sizes:
                sentence = f"ACK on stream {id_of(role)} has a body of the wrong length"
                wire = message(id_of(role), ACK, bytes(size), dialect)
                yield Case(f"ACK of {size} {role} {dialect.name}", role, dialect, wire, sentence)


def wrong_directions() -> Iterator[Case]:
    role = Role.SERVER
    for dialect, kind in ((WSMUX_V1, CLOSE), (WSMUX_V1, ERROR), (JS_WS, CLOSE), (JS_WS, ERROR)):
        for direction in range(2, 256, 1 if dialect is WSMUX_V1 else 17):
            sentence = f"{NAMES[kind]} on stream 1 with the direction {direction}"
            wire = message(1, kind, bytes((direction,)) + b"\5" * (kind == ERROR), dialect)
            name = f"{NAMES[kind]} of direction {direction} {dialect.name}"
            yield Case(name, role, dialect, wire, sentence)


def cut_codes() -> Iterator[Case]:
    for role in Role:
        for direction in (READ, WRITE):
            for start in cut_integers():
                name = f"code {start.hex()} of direction {direction.hex()} {role}"
                sentence = f"ERROR on stream {id_of(role)} without a whole code"
                wire = message(id_of(role), ERROR, direction + start)
                yield Case(name, role, WSMUX_V1, wire, sentence)
        for start in cut_integers():
            wire = message(id_of(role), GO_AWAY, start)
            sentence = "GO_AWAY without exactly one code"
            yield Case(f"farewell {start.hex()} {role}", role, WSMUX_V1, wire, sentence)


def bytes_behind() -> Iterator[Case]:
    for role in Role:
        for size in (1, 2, 3, 4, 100):
            rest = bytes(size)
            for direction in (READ, WRITE):
                for kind, body in ((CLOSE, direction), (ERROR, direction + b"\5")):
                    sentence = (
                        f"{NAMES[kind]} on stream {id_of(role)} has a body of the wrong length"
                    )
                    name = f"{size} bytes behind {NAMES[kind]} {direction.hex()} {role}"
                    wire = message(id_of(role), kind, body + rest)
                    yield Case(name, role, WSMUX_V1, wire, sentence)
            wire = message(id_of(role), GO_AWAY, b"\5" + rest)
            sentence = "GO_AWAY without exactly one code"
            yield Case(f"{size} bytes behind GO_AWAY {role}", role, WSMUX_V1, wire, sentence)


def too_much_credit() -> Iterator[Case]:
    for role in Role:
        for dialect in DIALECTS:
            for count in (2**32 - CREDIT, 2**32 - CREDIT + 1, 2**32 - 2, 2**32 - 1):
                sentence = f"ACK of {count} bytes lifts the unspent credit of {CREDIT} above 2^32-1"
                wire = message(id_of(role), ACK, uint32(count), dialect)
                name = f"ACK of {count} bytes {role} {dialect.name}"
                yield Case(name, role, dialect, wire, sentence, FlowControlError)


def ids_of_nobody() -> Iterator[Case]:
    for role in Role:
        for dialect in DIALECTS:
            for kind, body in ((DATA, b""), (DATA, b"x"), (CLOSE, READ), (CLOSE, WRITE)):
                for index in (0, 1, 5, 20):
                    theirs, ours = id_of(other(role), index), id_of(role, index + 1)
                    where = f"{NAMES[kind]} {body.hex()} {index} {role} {dialect.name}"
                    sentence = f"the first message on stream {theirs} is {NAMES[kind]}, not ACK"
                    wire = message(theirs, kind, body, dialect)
                    yield Case(f"new {where}", role, dialect, wire, sentence, StreamIdError)
                    sentence = f"stream {ours} has the parity of this side, which has not opened it"
                    wire = message(ours, kind, body, dialect)
                    yield Case(f"own {where}", role, dialect, wire, sentence, StreamIdError)


TABLES = (
    cut_ids,
    no_types,
    unknown_types,
    wrong_ack_sizes,
    wrong_directions,
    cut_codes,
    bytes_behind,
    too_much_credit,
    ids_of_nobody,
)
CASES = [case for table in TABLES for case in table()]


def test_every_table_has_cases_and_no_two_are_the_same() -> None:
    assert all(any(table()) for table in TABLES)
    assert len({case.name for case in CASES}) == len(CASES)
    assert len({(case.role, case.dialect, case.wire) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("table", TABLES)
def test_every_case_of_a_table_ends_the_connection(table: Callable[[], Iterator[Case]]) -> None:
    """One test for all values of a field, as a test for each would take ten times as long."""
    for case in table():
        machine, stream_id = opened(case.role, local=True, dialect=case.dialect, credit=CREDIT)
        assert stream_id == id_of(case.role)
        try:
            assert_ends_connection(machine, case.wire, case.error, case.sentence)
        except BaseException as error:
            error.add_note(f"the case: {case.name}")
            raise
