"""Each message of the tables is refused, with the sentence that stands beside it, or taken."""

from __future__ import annotations

import math
import struct
from datetime import timedelta
from typing import Any

import pytest

from wsmux.rpc.wire.envelope import EnvelopeError
from wsmux.rpc.wire.msgpack_codec import MsgpackCodec
from wsmux.rpc.wire.values import MAX_SAFE, BigInt

from ...helpers.rpc.bad_msgpack import (
    EPOCH,
    FIELDS_TABLE,
    TABLE,
    depth,
    ext,
    extensions,
    keys,
    syntax,
)
from ...helpers.rpc.codec_messages import Bad, around, msgpack_of
from ...helpers.tables import each_case, each_row


def test_every_table_has_cases_and_no_two_are_the_same() -> None:
    assert all(any(table) for table in (FIELDS_TABLE, syntax(), depth(), keys(), extensions()))
    assert len({bad.data for bad in TABLE}) == len(TABLE)


@each_case
@each_row(TABLE, name=lambda bad: bad.name)
def test_refused(bad: Bad) -> None:
    with pytest.raises(EnvelopeError) as caught:
        MsgpackCodec().decode(bad.data)
    assert bad.sentence in str(caught.value)


TAKEN: dict[str, tuple[bytes, Any]] = {
    "nil": (b"\xc0", None),
    "uint_8": (b"\xcc\x05", 5),
    "uint_64_of_5": (b"\xcf" + bytes(7) + b"\x05", 5),
    "int_64_of_5": (b"\xd3" + bytes(7) + b"\x05", 5),
    "largest_uint_64": (b"\xcf" + b"\xff" * 8, 2**64 - 1),
    "smallest_int_64": (b"\xd3\x80" + bytes(7), -(2**63)),
    "float_32": (b"\xca" + struct.pack(">f", 1.5), 1.5),
    "infinity": (b"\xcb" + struct.pack(">d", math.inf), math.inf),
    "minus_infinity": (b"\xcb" + struct.pack(">d", -math.inf), -math.inf),
    "empty_bytes": (b"\xc4\x00", b""),
    "long_form_of_text": (b"\xdb\x00\x00\x00\x01a", "a"),
    "long_form_of_array": (b"\xdd\x00\x00\x00\x01\x05", [5]),
    "array_head_within_bytes": (b"\xc4\x02\xdd\xdc", b"\xdd\xdc"),
    "small_bigint": (ext(0, b"\x05"), BigInt(5)),
    "bigint_in_a_wide_integer": (ext(0, b"\xcf" + b"\xff" * 8), BigInt(2**64 - 1)),
    "negative_bigint": (ext(0, b"\xff"), BigInt(-1)),
    "small_bigint_as_text": (ext(0, b"\xa15"), BigInt(5)),
    "large_bigint": (ext(0, msgpack_of("18446744073709551616")), BigInt(2**64)),
    "timestamp_32": (ext(-1, b"\xff" * 4), EPOCH + timedelta(seconds=2**32 - 1)),
    "timestamp_96": (ext(-1, bytes(4) + b"\xff" * 8), EPOCH - timedelta(seconds=1)),
    "nanoseconds_are_cut": (ext(-1, struct.pack(">Q", 1999 << 34)), EPOCH + timedelta(0, 0, 1)),
    "number_as_key": (b"\x81\x05\x01", {"5": 1}),
    "negative_number_as_key": (b"\x81\xff\x01", {"-1": 1}),
    "wide_number_as_key": (b"\x81\xcf" + MAX_SAFE.to_bytes(8, "big") + b"\x01", {str(MAX_SAFE): 1}),
    "number_as_key_within": (b"\x91\x81\x05\x81\x06\x01", [{"5": {"6": 1}}]),
    "last_of_two_keys": (b"\x82\xa1a\x01\xa1a\x02", {"a": 2}),
    "last_of_number_and_text": (b"\x82\x05\x01\xa15\x02", {"5": 2}),
    "proto": (b"\x81\xa9__proto__\x01", {"__proto__": 1}),
    "json_s_names_mean_nothing": (b"\x81\xa2$t\xa0", {"$t": ""}),
}


@each_case
@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    data, payload = TAKEN[name]
    found = MsgpackCodec().decode(around(MsgpackCodec, data)).payload
    assert found == payload
    assert type(found) is type(payload)


def test_nan_is_a_float_like_others() -> None:
    data = around(MsgpackCodec, b"\xcb" + struct.pack(">d", math.nan))
    assert math.isnan(MsgpackCodec().decode(data).payload)
