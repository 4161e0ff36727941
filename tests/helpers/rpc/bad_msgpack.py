"""Make messages that are no msgpack of River's, each with the sentence that refuses it."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from datetime import UTC, datetime

import msgpack

from wsmux.rpc.wire.msgpack_codec import MsgpackCodec
from wsmux.rpc.wire.values import MAX_DIGITS, MAX_SAFE

from .codec_messages import FIELDS, Bad, around, bad_fields, json_of, msgpack_of

__all__ = ["EPOCH", "FIELDS_TABLE", "TABLE", "depth", "ext", "extensions", "keys", "syntax"]

SYNTAX = "a message must be msgpack"
DEEP = "nests deeper than max_depth"
DECIMAL = "a bigint must be decimal text"
UNKNOWN = "is not known"
KEY = "a key of an object must be a string"
TOP_KEY = "a key of a message must be a string"
DEEPEST = 10**5

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# With this field added, the first byte of a message of eleven fields counts twelve.
MORE = bytes((0x80 | len(FIELDS) + 1,)) + msgpack_of(FIELDS)[1:]


def ext(code: int, body: bytes) -> bytes:
    return b"\xc7" + struct.pack(">Bb", len(body), code) + body


def syntax() -> Iterator[Bad]:
    good = msgpack_of(FIELDS)
    for kind, data in {
        "nothing": b"",
        "json": json_of(FIELDS),
        "words": b"bad handshake",
        "never_used": b"\xc1",
        "cut": good[:-1],
        "cut_in_a_string": good[:5],
        "map_without_fields": good[:1],
        "key_without_value": MORE + b"\xa1x",
        "byte_behind": good + b"\0",
        "nil_behind": good + b"\xc0",
        "never_used_behind": good + b"\xc1",
        "two_messages": good + good,
        "one_field_too_many": b"\x8a" + good[1:],
        "text_as_message": b"\xd9\xff",
    }.items():
        yield Bad(kind, data, SYNTAX)
    for kind, data in {
        "nothing": b"",
        "never_used": b"\xc1",
        "two_payloads": b"\x01\x02",
        "invalid_utf_8": b"\xa1\xff",
        "cut_utf_8": b"\xa2\xe2\x82",
        "overlong_utf_8": b"\xa2\xc0\xaf",
        "surrogate_in_utf_8": b"\xa3\xed\xa0\x80",
        "invalid_utf_8_in_a_key": b"\x81\xa1\xff\x01",
        "cut_uint_8": b"\xcc",
        "cut_uint_64": b"\xcf" + b"\0" * 7,
        "cut_int_16": b"\xd1\0",
        "cut_float": b"\xcb" + b"\0" * 7,
        "cut_text": b"\xa5abc",
        "cut_text_8": b"\xd9",
        "text_16_too_long": b"\xda\xff\xffabc",
        "text_32_too_long": b"\xdb\xff\xff\xff\xffabc",
        "bytes_8_too_long": b"\xc4\xffabc",
        "bytes_16_too_long": b"\xc5\xff\xffabc",
        "bytes_32_too_long": b"\xc6\xff\xff\xff\xffabc",
        "array_too_long": b"\x9f\x01",
        "array_16_too_long": b"\xdc\xff\xff\x01",
        "array_32_too_long": b"\xdd\xff\xff\xff\xff\x01",
        "map_too_long": b"\x8f\xa1a\x01",
        "map_16_too_long": b"\xde\xff\xff\xa1a\x01",
        "map_32_too_long": b"\xdf\xff\xff\xff\xff\xa1a\x01",
        "arrays_that_announce_a_million": b"\xdd\x00\x0f\xff\xff" * 200 + b"\x01" * 2**20,
        "arrays_16_that_announce_60_000": b"\xdc\xea\x60" * 200 + b"\x01" * 60_000,
        "cut_ext": b"\xd6\0\0",
        "ext_8_too_long": b"\xc7\xff\0",
        "ext_32_too_long": b"\xc9\xff\xff\xff\xff\0",
    }.items():
        yield Bad(f"payload-{kind}", around(MsgpackCodec, data), SYNTAX)


def depth() -> Iterator[Bad]:
    for kind, data in {
        "arrays": b"\x91" * 101 + b"\x01",
        "maps": b"\x81\xa1a" * 101 + b"\x01",
        "both": b"\x91\x81\xa1a" * 51 + b"\x01",
        "arrays_16": b"\xdc\0\x01" * 101 + b"\x01",
        "empty_at_the_bottom": b"\x91" * 100 + b"\x90",
        "beside_shallow_ones": b"\x93\x90\x80" + b"\x91" * 100 + b"\x01",
        "with_a_number_as_key": b"\x82\x01\x01\xa1a" + b"\x91" * 100 + b"\x01",
        "as_deep_as_the_package_reads": b"\x91" * 1000 + b"\x01",
    }.items():
        yield Bad(f"deep-{kind}", around(MsgpackCodec, data), DEEP)
    for kind, data in {
        "arrays": b"\x91" * DEEPEST + b"\x01",
        "maps": b"\x81\xa1a" * DEEPEST + b"\x01",
        "arrays_16": b"\xdc\0\x01" * DEEPEST + b"\x01",
        "never_closed": b"\x91" * DEEPEST,
        "maps_as_keys": b"\x81" * DEEPEST,
    }.items():
        yield Bad(f"deepest-{kind}", around(MsgpackCodec, data), DEEP)
    yield Bad("deepest-message", b"\x91" * DEEPEST + b"\x01", DEEP)


def keys() -> Iterator[Bad]:
    for kind, key in {
        "nil": b"\xc0",
        "true": b"\xc3",
        "float": b"\xcb" + struct.pack(">d", 1.5),
        "nan": b"\xcb" + struct.pack(">d", math.nan),
        "beyond_2_53": b"\xcf" + (MAX_SAFE + 1).to_bytes(8, "big"),
        "bytes": b"\xc4\x01a",
        "array": b"\x90",
        "map": b"\x80",
        "bigint": ext(0, b"\x05"),
        "datetime": ext(-1, bytes(4)),
    }.items():
        entry = b"\x81" + key + b"\x01"
        yield Bad(f"key-{kind}", around(MsgpackCodec, entry), KEY)
        yield Bad(f"deep-key-{kind}", around(MsgpackCodec, b"\x91\x81\xa1a" + entry), KEY)
        # A key that is refused anywhere has the one sentence, unless it is of bytes.
        sentence = TOP_KEY if kind == "bytes" else KEY
        yield Bad(f"message-key-{kind}", MORE + key + b"\x01", sentence)
    yield Bad("message-key-number", MORE + b"\x05\x01", TOP_KEY)
    yield Bad("message-keys-all-numbers", b"\x81\x01\x01", TOP_KEY)


def extensions() -> Iterator[Bad]:
    for code in (1, 5, 127, -2, -128):
        yield Bad(f"ext-{code}", around(MsgpackCodec, ext(code, b"\x05")), UNKNOWN)
    for kind, body in {
        "nil": b"\xc0",
        "true": b"\xc3",
        "float": b"\xcb" + struct.pack(">d", 5.0),
        "nan": b"\xcb" + struct.pack(">d", math.nan),
        "bytes": b"\xc4\x015",
        "empty_array": b"\x90",
        "empty_map": b"\x80",
        "bigint": ext(0, b"\x05"),
        "datetime": ext(-1, bytes(4)),
        "empty_text": b"\xa0",
        "hexadecimal": msgpack_of("0x10"),
        "fraction": msgpack_of("1.5"),
        "space": msgpack_of(" 5"),
        "word": msgpack_of("five"),
    }.items():
        yield Bad(f"bigint-{kind}", around(MsgpackCodec, ext(0, body)), DECIMAL)
    for size in (MAX_DIGITS + 1, 10**6):
        text = msgpack.ExtType(0, msgpack_of("1" * size))
        yield Bad(f"bigint-{size}-digits", around(MsgpackCodec, msgpack_of(text)), DECIMAL)
    for kind, body in {
        "nothing": b"",
        "two": b"\x05\x05",
        "cut": b"\xcd\x01",
        "never_used": b"\xc1",
        "invalid_utf_8": b"\xa1\xff",
        "array": b"\x91\x05",
        "map": b"\x81\xa1a\x05",
        "deep": b"\x91" * 250,
    }.items():
        yield Bad(f"bigint-{kind}", around(MsgpackCodec, ext(0, body)), SYNTAX)
    for kind, body in {
        "no_bytes": b"",
        "one_byte": b"\0",
        "five_bytes": bytes(5),
        "thirteen_bytes": bytes(13),
        "year_10000": bytes(4) + struct.pack(">q", 253402300800),
        "year_0": bytes(4) + struct.pack(">q", -62135596801),
        "end_of_time": bytes(4) + struct.pack(">q", 2**63 - 1),
    }.items():
        yield Bad(f"timestamp-{kind}", around(MsgpackCodec, ext(-1, body)), SYNTAX)


SPECIAL = {"bytes": b"A", "bigint": msgpack.ExtType(0, b"\x01"), "nan": math.nan, "inf": math.inf}
FIELDS_TABLE = list(bad_fields(msgpack_of, SPECIAL))
TABLE = [*FIELDS_TABLE, *syntax(), *depth(), *keys(), *extensions()]
