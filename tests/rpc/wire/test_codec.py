"""What codecs refuse to send, what they make of Python's values, and how they are found."""

from __future__ import annotations

import enum
import importlib
import inspect
import math
import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from wsmux.exceptions import LocalProtocolError
from wsmux.rpc.wire.codec import MOST_DEPTH, Codec, EncodeError
from wsmux.rpc.wire.envelope import Envelope
from wsmux.rpc.wire.json_codec import JsonCodec, codec_of
from wsmux.rpc.wire.msgpack_codec import MsgpackCodec
from wsmux.rpc.wire.values import MAX_DIGITS, MAX_SAFE, BigInt

from ...helpers.rpc.codec_messages import (
    CODECS,
    ENVELOPE,
    FIELDS,
    SMALLEST,
    json_of,
    msgpack_of,
    nested,
    sent,
    there_and_back,
)
from ...helpers.tables import each_case

both = pytest.mark.parametrize("codec", [codec() for codec in CODECS], ids=lambda c: c.name)

MAKERS: dict[str, Callable[[Any], bytes]] = {"json": json_of, "msgpack": msgpack_of}


class Colour(enum.StrEnum):
    RED = "red"


class Old(str, enum.Enum):  # noqa: UP042 - its str() is not its text
    BLUE = "blue"


class Number(enum.IntEnum):
    ONE = 1
    HUGE = 2**60


class Half(float):
    pass


class Raw(bytes):
    pass


class Moment(datetime):
    pass


class Point(NamedTuple):
    x: int
    y: int


ARRIVES_AS: dict[str, tuple[Any, Any]] = {
    "empty_object": ({}, {}),
    "object": ({"abc": 123, "def": "cool"}, {"abc": 123, "def": "cool"}),
    "text": ({"text": "🇧🇪 你好"}, {"text": "🇧🇪 你好"}),
    "null": ({"nothing": None}, {"nothing": None}),
    "bytes": ({"bytes": b"\0\x2ad\xff"}, {"bytes": b"\0\x2ad\xff"}),
    "no_bytes": ({"bytes": b""}, {"bytes": b""}),
    "nested": ({"a": [{"b": True}], "c": {"d": {}}}, {"a": [{"b": True}], "c": {"d": {}}}),
    "tuple": ((1, (2,)), [1, [2]]),
    "named_tuple": (Point(1, 2), [1, 2]),
    "ordered_dict": (OrderedDict(a=1), {"a": 1}),
    "mapping": (MappingProxyType({"a": [1]}), {"a": [1]}),
    "str_enum": ({Colour.RED: Colour.RED}, {"red": "red"}),
    "old_str_enum": ({Old.BLUE: [Old.BLUE]}, {"blue": ["blue"]}),
    "int_enum": ([Number.ONE, Number.HUGE], [1, BigInt(2**60)]),
    "float_subclass": (Half(0.5), 0.5),
    "bytearray": (bytearray(b"ab"), b"ab"),
    "memoryview": (memoryview(b"abcd")[::2], b"ac"),
    "bytes_subclass": (Raw(b"ab"), b"ab"),
    "largest_number": (MAX_SAFE, MAX_SAFE),
    "smallest_number": (-MAX_SAFE, -MAX_SAFE),
    "smallest_large_integer": (MAX_SAFE + 1, BigInt(MAX_SAFE + 1)),
    "negative_large_integer": (-MAX_SAFE - 1, BigInt(-MAX_SAFE - 1)),
    "small_bigint": (BigInt(5), BigInt(5)),
    "negative_bigint": (BigInt(-5), BigInt(-5)),
    "longest_integer": (10**MAX_DIGITS - 1, BigInt(10**MAX_DIGITS - 1)),
    "whole_float": (5.0, 5.0),
    "booleans": ([True, False], [True, False]),
    "nothing": (None, None),
    "nul_in_text": ("\0", "\0"),
}


@each_case
@both
@pytest.mark.parametrize("name", ARRIVES_AS)
def test_arrives_as(codec: Codec, name: str) -> None:
    value, expected = ARRIVES_AS[name]
    found = there_and_back(codec, value)
    assert found == expected
    assert repr(found) == repr(expected)
    assert type(found) is type(expected)


CANNOT_BE_SENT: dict[str, tuple[Any, str]] = {
    "set": ({1}, "cannot encode set"),
    "complex": ([1j], "cannot encode complex"),
    "date": (date(2026, 1, 1), "cannot encode date"),
    "generator": ((item for item in ()), "cannot encode generator"),
    "object": ({"a": object()}, "cannot encode object"),
    "number_as_key": ({1: 1}, "a key of an object must be a string, not int"),
    "bytes_as_key": ([{b"a": 1}], "a key of an object must be a string, not bytes"),
    "none_as_key": ({None: 1}, "a key of an object must be a string, not NoneType"),
    "too_long": (10**MAX_DIGITS, "at most 4300 digits"),
    "too_long_negative": (BigInt(-(10**MAX_DIGITS)), "at most 4300 digits"),
    "million_bits": ([1 << 10**6], "at most 4300 digits"),
    "deep": (nested(101), "deeper"),
    "deep_in_objects": ({"a": nested(100)}, "deeper"),
    "deep_100_000": (nested(10**5), "deeper"),
}

JSON_CANNOT_SEND: dict[str, tuple[Any, str]] = {
    "nan": (math.nan, "not JSON compliant"),
    "infinity": ([math.inf], "not JSON compliant"),
    "minus_infinity": ({"a": Half("-inf")}, "not JSON compliant"),
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), "cannot encode datetime"),
    "name_of_bytes": ({"$t": "QQ=="}, "a key '$t' cannot be sent"),
    "name_of_bigints": ([{"a": 1, "$b": 1}], "a key '$b' cannot be sent"),
    "deep_bytes": (nested(100, b""), "deeper"),
    "deep_bigint": (nested(100, BigInt(1)), "deeper"),
}

MSGPACK_CANNOT_SEND: dict[str, tuple[Any, str]] = {
    "datetime_without_zone": (datetime(2026, 1, 1), "without a time zone"),
    "datetime_beyond_utc": (datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), "range"),
    "proto": ({"__proto__": 1}, "a key '__proto__' cannot be sent"),
    "lone_surrogate": ("\ud800", "surrogates not allowed"),
    "lone_surrogate_in_a_key": ({"\udfff": 1}, "surrogates not allowed"),
}

REFUSALS = [
    pytest.param(codec(), *case, id=f"{codec.name}-{name}")
    for codec, table in [
        (JsonCodec, CANNOT_BE_SENT | JSON_CANNOT_SEND),
        (MsgpackCodec, CANNOT_BE_SENT | MSGPACK_CANNOT_SEND),
    ]
    for name, case in table.items()
]


@each_case
@pytest.mark.parametrize(("codec", "value", "sentence"), REFUSALS)
def test_cannot_be_sent(codec: Codec, value: Any, sentence: str) -> None:
    with pytest.raises(EncodeError) as caught:
        codec.pack(value)
    assert sentence in str(caught.value)
    assert isinstance(caught.value, LocalProtocolError)


@both
def test_a_payload_that_holds_itself_is_too_deep(codec: Codec) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EncodeError, match="deeper"):
        codec.pack(endless)


@both
@pytest.mark.parametrize("depth", [100, MOST_DEPTH])
def test_the_deepest_payload_arrives(codec: Codec, depth: int) -> None:
    codec = type(codec)(max_depth=depth)
    assert there_and_back(codec, nested(depth)) == nested(depth)
    keyed: Any = 1
    for _ in range(depth):
        keyed = {"a": keyed}
    assert there_and_back(codec, keyed) == keyed


def test_brackets_in_strings_are_no_depth() -> None:
    payload = ["[{" * 200, '"[\\', '\\"[', "]", "\\"] * 50
    assert there_and_back(JsonCodec(), payload) == payload


@both
def test_an_interpreter_without_room_is_no_other_error(codec: Codec) -> None:
    deepest = type(codec)(max_depth=MOST_DEPTH)
    payload = nested(MOST_DEPTH)
    data = sent(deepest, payload)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 150)
    try:
        with pytest.raises(EncodeError):
            deepest.pack(payload)
    finally:
        sys.setrecursionlimit(limit)
    assert deepest.decode(data).payload == payload


@both
@pytest.mark.parametrize("depth", [0, MOST_DEPTH + 1, -1])
def test_limits_out_of_range_are_refused(codec: Codec, depth: int) -> None:
    with pytest.raises(ValueError, match="must be from 1"):
        type(codec)(depth)


@both
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_read(codec: Codec, kind: Callable[[bytes], Any]) -> None:
    data = codec.encode(ENVELOPE, codec.pack(ENVELOPE.payload))
    assert codec.decode(kind(data)) == ENVELOPE


@both
def test_fields_may_come_in_any_order(codec: Codec) -> None:
    assert codec.decode(MAKERS[codec.name](dict(reversed(FIELDS.items())))) == ENVELOPE


@both
def test_unknown_fields_are_ignored(codec: Codec) -> None:
    assert codec.decode(MAKERS[codec.name](FIELDS | {"later": [1]})) == ENVELOPE


@both
def test_whole_floats_are_counters(codec: Codec) -> None:
    floats = {"seq": 3.0, "ack": 2.0, "timeoutMs": 1500.0}
    found = codec.decode(MAKERS[codec.name](FIELDS | floats))
    assert found == ENVELOPE
    assert (type(found.seq), type(found.ack), type(found.timeout)) == (int, int, int)


@both
def test_absent_fields_are_left_out(codec: Codec) -> None:
    message = codec.encode(SMALLEST, codec.pack(None))
    assert codec.decode(message) == SMALLEST
    assert b"serviceName" not in message
    assert b"tracing" not in message
    assert b"timeoutMs" not in message


@both
def test_counters_may_be_as_large_as_javascript_counts(codec: Codec) -> None:
    envelope = Envelope("", "", "", MAX_SAFE, MAX_SAFE, "", MAX_SAFE, None, timeout=MAX_SAFE)
    assert codec.decode(codec.encode(envelope, codec.pack(None))) == envelope


def test_json_escapes_half_a_surrogate_pair_in_names() -> None:
    codec = JsonCodec()
    envelope = Envelope("\ud800", '"', "\\", 0, 0, "\n", 0, None)
    message = codec.encode(envelope, codec.pack(None))
    assert rb'"id":"\ud800"' in message
    assert codec.decode(message) == envelope


def test_msgpack_refuses_half_a_surrogate_pair_in_names() -> None:
    envelope = Envelope("\ud800", "", "", 0, 0, "", 0, None)
    with pytest.raises(EncodeError, match="surrogates not allowed"):
        MsgpackCodec().encode(envelope, b"\xc0")


def test_json_reads_two_halves_of_a_pair_as_one_character() -> None:
    assert there_and_back(JsonCodec(), "\ud83d\ude00") == "\U0001f600"


def test_msgpack_sends_a_subclass_of_datetime_as_its_moment() -> None:
    moment = Moment(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    found = there_and_back(MsgpackCodec(), moment)
    assert found == moment
    assert type(found) is datetime


def test_msgpack_carries_nan() -> None:
    assert math.isnan(there_and_back(MsgpackCodec(), math.nan))


def test_a_bigint_is_an_integer_whose_arithmetic_gives_integers() -> None:
    five = BigInt(5)
    assert five == 5
    assert str(five) == "5"
    assert type(five + 1) is int
    assert type(pickle.loads(pickle.dumps(five))) is BigInt


def test_codecs_are_found_by_name() -> None:
    assert type(codec_of("json")) is JsonCodec
    assert type(codec_of("msgpack")) is MsgpackCodec


def test_a_codec_stands_for_itself() -> None:
    codec = JsonCodec(max_depth=3)
    assert codec_of(codec) is codec


@pytest.mark.parametrize("name", ["binary", "JSON", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="codec must be 'json', 'msgpack' or 'protobuf', not"):
        codec_of(name)


def test_msgpack_is_loaded_when_it_is_asked_for() -> None:
    code = "import sys; from wsmux.rpc.wire.json_codec import codec_of; codec_of('json'); "
    subprocess.run([sys.executable, "-c", f"{code}assert 'msgpack' not in sys.modules"], check=True)


def test_a_missing_msgpack_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    monkeypatch.delitem(sys.modules, "wsmux.rpc.wire.msgpack_codec")
    with pytest.raises(ImportError, match=r"pip install 'wsmux-streams\[rpc\]'"):
        importlib.import_module("wsmux.rpc.wire.msgpack_codec")
    with pytest.raises(ImportError, match="needs msgpack"):
        codec_of("msgpack")
