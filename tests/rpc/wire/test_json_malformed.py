"""Each message of the tables is refused, with the sentence that stands beside it, or taken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from wsmux.rpc.wire.envelope import EnvelopeError
from wsmux.rpc.wire.json_codec import JsonCodec
from wsmux.rpc.wire.values import MAX_DIGITS, BigInt

from ...helpers.rpc.bad_json import FIELDS_TABLE, TABLE, depth, syntax, typed
from ...helpers.rpc.codec_messages import Bad, around
from ...helpers.tables import each_case, each_row


def test_every_table_has_cases_and_no_two_are_the_same() -> None:
    assert all(any(table) for table in (FIELDS_TABLE, syntax(), depth(), typed()))
    assert len({bad.data for bad in TABLE}) == len(TABLE)


@each_case
@each_row(TABLE, name=lambda bad: bad.name)
def test_refused(bad: Bad) -> None:
    with pytest.raises(EnvelopeError) as caught:
        JsonCodec().decode(bad.data)
    assert bad.sentence in str(caught.value)


TAKEN: dict[str, tuple[bytes, Any]] = {
    "null": (b"null", None),
    "spaces": (b" \t\r\n[ ] ", []),
    "empty_bytes": (b'{"$t":""}', b""),
    "loose_bits": (b'{"$t":"QR=="}', b"A"),
    "bytes_with_more_fields": (b'{"a":1,"$t":"QQ==","$b":0}', b"A"),
    "escaped_name": (rb'{"\u0024b":"7"}', BigInt(7)),
    "leading_zeros": (b'{"$b":"007"}', BigInt(7)),
    "minus_zero": (b'{"$b":"-0"}', BigInt(0)),
    "longest_bigint": (b'{"$b":"' + b"9" * MAX_DIGITS + b'"}', BigInt(10**MAX_DIGITS - 1)),
    "beyond_2_53": (b"18446744073709551617", 2**64 + 1),
    "beyond_doubles": (b"1" + b"0" * 400, 10**400),
    "largest_double": (b"1.7976931348623157e308", sys.float_info.max),
    "underflow": (b"1e-400", 0.0),
    "last_of_two_keys": (b'{"a":1,"a":2}', {"a": 2}),
    "last_of_two_typed_keys": (b'{"$b":"x","$b":"2"}', BigInt(2)),
    "lone_surrogate": (rb'"\ud800"', "\ud800"),
    "surrogate_pair": (rb'"\ud83d\ude00"', "\U0001f600"),
    "proto": (b'{"__proto__":1}', {"__proto__": 1}),
    "dollar_in_text": (b'["$t","$b",{"a":"$t"}]', ["$t", "$b", {"a": "$t"}]),
}


@each_case
@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    data, payload = TAKEN[name]
    found = JsonCodec().decode(around(JsonCodec, data)).payload
    assert found == payload
    assert type(found) is type(payload)


@pytest.fixture
def no_bound_on_digits() -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.usefixtures("no_bound_on_digits")
@pytest.mark.parametrize("sign", [b"", b"-"])
def test_long_integers_are_refused_even_if_python_would_read_them(sign: bytes) -> None:
    data = around(JsonCodec, sign + b"1" * 10**7)  # minutes, if it were read
    with pytest.raises(EnvelopeError, match="digits"):
        JsonCodec().decode(data)


@pytest.mark.parametrize(
    "quotes",
    [b'"' * 10**6, rb"\"" * 10**6, b'"' + rb"\"" * 10**6, b"\\" * 10**6, b'"["' * 10**6],
    ids=["quotes", "escaped", "unfinished", "backslashes", "adjacent"],
)
def test_strings_are_skipped_in_linear_time(quotes: bytes) -> None:
    with pytest.raises(EnvelopeError):
        JsonCodec().decode(b"[" * 200 + quotes)
