"""Make messages that are no protobuf of River's, each with the sentence that refuses it."""

from __future__ import annotations

from collections.abc import Iterator

from .codec_messages import FIELDS, Bad, json_of, msgpack_of
from .protobuf_messages import EMPTY, NUMBERS, packed, prefix, text, varint

__all__ = ["GOOD", "MSGPACK", "TABLE"]

SYNTAX = "a message must be protobuf"
PAYLOAD = "a message without a payload"
MSGPACK = "a message must be msgpack"
GOOD = EMPTY + packed({"n": 3})

LONGEST = 2**31 - 1


def syntax() -> Iterator[Bad]:
    for kind, data in {
        "cut": GOOD[:-1],
        "cut_in_a_tag": EMPTY + b"\x80",
        "cut_in_a_number": prefix("seq", 0) + b"\x80",
        "cut_in_a_length": prefix("id", 2) + b"\x80",
        "number_without_end": prefix("seq", 0) + b"\xff" * 11 + b"\x01" + GOOD,
        "tag_without_end": b"\xff" * 11 + b"\x01" + GOOD,
        "field_zero": b"\x00\x00" + GOOD,
        "text_in_field_zero": b"\x02\x00" + GOOD,
        "kind_six": GOOD + prefix(13, 6),
        "kind_seven": GOOD + prefix(13, 7),
        "end_of_no_group": GOOD + prefix(13, 4),
        "group_without_end": GOOD + prefix(13, 3),
        "group_with_the_end_of_another": GOOD + prefix(13, 3) + prefix(14, 4),
        "groups_in_groups": GOOD + prefix(13, 3) * 10**5 + prefix(13, 4) * 10**5,
        "tracing_that_is_none": EMPTY + text("tracing", b"\x0a\x05p") + packed(1),
        "tracing_with_a_cut_field": EMPTY + text("tracing", b"\x0a") + packed(1),
        "words": b"bad handshake",
    }.items():
        yield Bad(kind, data, SYNTAX)
    for name in ("id", "from", "to", "streamId", "serviceName", "procedureName"):
        for kind, data in {
            "invalid_utf_8": b"\xff",
            "cut_utf_8": b"\xe2\x82",
            "overlong_utf_8": b"\xc0\xaf",
            "surrogate_in_utf_8": b"\xed\xa0\x80",
        }.items():
            yield Bad(f"{name}-{kind}", GOOD + text(name, data), SYNTAX)
    yield Bad("traceparent-invalid_utf_8", GOOD + text("tracing", text(1, b"\xff")), SYNTAX)
    for name in NUMBERS:
        if name in ("seq", "ack", "controlFlags", "timeoutMs"):
            continue
        for length in (6, LONGEST, 2**31, 2**32 - 1, 2**63, 2**64 - 1):
            data = GOOD + prefix(name, 2) + varint(length) + b"short"
            yield Bad(f"{name}-{length}_announced", data, SYNTAX)


def payloads() -> Iterator[Bad]:
    yield Bad("nothing", b"", PAYLOAD)
    yield Bad("no_payload", EMPTY, PAYLOAD)
    yield Bad("payload_in_another_field", EMPTY + text(13, b"abc"), PAYLOAD)
    for kind in (0, 1, 5):
        for name in ("bytes", "msgpack"):
            value = {0: b"\x01", 1: bytes(8), 5: bytes(4)}[kind]
            yield Bad(f"{name}-of_kind_{kind}", EMPTY + prefix(name, kind) + value, PAYLOAD)
    for what, data in {
        "empty": b"",
        "never_used": b"\xc1",
        "cut": b"\xa5abc",
        "two": b"\x01\x02",
        "invalid_utf_8": b"\xa1\xff",
        "array_too_long": b"\xdd\xff\xff\xff\xff\x01",
        "map_too_long": b"\xdf\xff\xff\xff\xff\xa1a\x01",
        "arrays_that_announce_a_million": b"\xdd\x00\x0f\xff\xff" * 200 + b"\x01" * 2**20,
    }.items():
        yield Bad(f"msgpack-{what}", EMPTY + text("msgpack", data), MSGPACK)
    deep = b"\x91" * 101 + b"\x01"
    yield Bad("msgpack-deep", EMPTY + text("msgpack", deep), "nests deeper than max_depth")
    keyed = b"\x81\xc4\x01a\x01"
    yield Bad("msgpack-key_of_bytes", EMPTY + text("msgpack", keyed), "a key of an object")
    unknown = b"\xd4\x07\x00"
    yield Bad("msgpack-extension_7", EMPTY + text("msgpack", unknown), "is not known")
    first = text("bytes", b"good") + text("msgpack", b"\xc1")
    yield Bad("msgpack-behind_bytes", EMPTY + first, MSGPACK)


def others() -> Iterator[Bad]:
    yield Bad("json", json_of(FIELDS), "a message")
    yield Bad("msgpack", msgpack_of(FIELDS), "a message")


TABLE = [*syntax(), *payloads(), *others()]
