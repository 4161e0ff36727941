"""Make messages for the tests of both codecs, well-formed and not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgpack

from wsmux.rpc.wire.codec import Codec
from wsmux.rpc.wire.envelope import Envelope
from wsmux.rpc.wire.json_codec import JsonCodec
from wsmux.rpc.wire.msgpack_codec import MsgpackCodec

CODECS = [JsonCodec, MsgpackCodec]

Fields = dict[str, Any]

FIELDS: Fields = {
    "id": "i1",
    "from": "client",
    "to": "SERVER",
    "seq": 3,
    "ack": 2,
    "streamId": "s1",
    "controlFlags": 10,
    "serviceName": "test",
    "procedureName": "add",
    "tracing": {"traceparent": "p", "tracestate": "s"},
    "timeoutMs": 1500,
    "payload": {"n": 3},
}

ENVELOPE = Envelope(
    "i1", "client", "SERVER", 3, 2, "s1", 10, {"n": 3}, "test", "add", ("p", "s"), 1500
)

SMALLEST = Envelope("i1", "SERVER", "client", 0, 0, "s1", 0, None)


def json_of(fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def msgpack_of(fields: Any) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


def around(codec: type[Codec], payload: bytes) -> bytes:
    """Return a message that holds ``payload``, taken as it is."""
    return codec().encode(SMALLEST, payload)


def sent(codec: Codec, payload: Any) -> bytes:
    return codec.encode(SMALLEST, codec.pack(payload))


def there_and_back(codec: Codec, payload: Any) -> Any:
    return codec.decode(sent(codec, payload)).payload


def nested(depth: int, inner: Any = 1) -> Any:
    value = inner
    for _ in range(depth):
        value = [value]
    return value


class Bad(NamedTuple):
    """A message, and part of the sentence that refuses it."""

    name: str
    data: bytes
    sentence: str


def without(name: str) -> Fields:
    return {field: value for field, value in FIELDS.items() if field != name}


ANYTHING: dict[str, Any] = {
    "null": None,
    "true": True,
    "one": 1,
    "fraction": 1.5,
    "text": "1",
    "empty_array": [],
    "empty_object": {},
}

NO_COUNTS: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "text": "1",
    "empty_array": [],
    "object": {"n": 1},
    "fraction": 1.5,
    "minus_one": -1,
    "minus_half": -0.5,
    "minus_one_as_float": -1.0,
    "two_to_53": 2**53,
    "two_to_53_as_float": 2.0**53,
    "huge_float": 1e300,
}


def bad_fields(make: Callable[[Any], bytes], special: dict[str, Any]) -> Iterator[Bad]:
    """Yield messages with one wrong field each; ``special`` holds what the codec alone can say."""
    for name in ("id", "from", "to", "streamId"):
        sentence = f"{name} of a message must be a string"
        yield Bad(f"{name}-missing", make(without(name)), sentence)
        for kind, value in (ANYTHING | special).items():
            if kind != "text":
                yield Bad(f"{name}-{kind}", make(FIELDS | {name: value}), sentence)
    for name in ("serviceName", "procedureName"):
        for kind, value in (ANYTHING | special).items():
            if kind != "text":
                sentence = f"{name} of a message must be a string"
                yield Bad(f"{name}-{kind}", make(FIELDS | {name: value}), sentence)
    for name in ("seq", "ack", "controlFlags", "timeoutMs"):
        sentence = f"{name} of a message must be a whole number from 0 to 2^53-1"
        if name != "timeoutMs":
            yield Bad(f"{name}-missing", make(without(name)), sentence)
        for kind, value in (NO_COUNTS | special).items():
            yield Bad(f"{name}-{kind}", make(FIELDS | {name: value}), sentence)
    for kind, value in (ANYTHING | special).items():
        if kind != "empty_object":
            sentence = "tracing of a message must be an object"
            yield Bad(f"tracing-{kind}", make(FIELDS | {"tracing": value}), sentence)
    for name in ("traceparent", "tracestate"):
        sentence = f"{name} of a message must be a string"
        both = {"traceparent": "", "tracestate": ""}
        alone = {other: "" for other in both if other != name}
        yield Bad(f"{name}-missing", make(FIELDS | {"tracing": alone}), sentence)
        for kind, value in ANYTHING.items():
            if kind != "text":
                bad = make(FIELDS | {"tracing": both | {name: value}})
                yield Bad(f"{name}-{kind}", bad, sentence)
    yield Bad("payload-missing", make(without("payload")), "a message without a payload")
    for kind, value in (ANYTHING | special).items():
        if kind != "empty_object":
            yield Bad(f"message-{kind}", make(value), "a message must be an object")
    yield Bad("message-array", make([FIELDS]), "a message must be an object")
    yield Bad("message-empty", make({}), "a message without a payload")
