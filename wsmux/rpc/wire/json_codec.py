"""Encode River's messages as JSON in UTF-8, like the naive JSON codec of the TypeScript original.

JSON has neither bytes nor bigints: they are written as ``{"$t": base64}`` and ``{"$b": decimal}``.
These keys cannot be escaped. So a received object with such a key is converted, whatever its other
keys, and an object with such a key is refused when sent. Both forms count as a level of nesting.

Decoding is stricter than ``JSON.parse`` and ``atob``: base64 must be padded and without spaces,
UTF-8 must be valid and without a byte order mark, and numbers must be finite. Integers of any
length are read exactly, while JavaScript would round them.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from functools import cache
from itertools import accumulate
from json import JSONDecoder, JSONEncoder
from json.encoder import encode_basestring
from math import isinf
from sys import get_int_max_str_digits
from typing import Any

from .codec import Codec, EncodeError
from .envelope import Envelope, EnvelopeError
from .message_size import Head
from .values import MAX_DIGITS, Rules, big_text, level_below, parse_big, portable

__all__ = ["JsonCodec", "codec_of"]

# For counting levels: an opening bracket is 1, a closing one -1; all others but quotes are removed.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))

_SPACES = " \t\n\r"


class JsonCodec(Codec):
    """Encode and decode messages as JSON; see ``Codec``.

    Payloads may contain ``None``, ``bool``, ``int``, ``float``, ``str``, bytes-like objects, lists,
    tuples and mappings with string keys. A lone surrogate is escaped, as by ``JSON.stringify``.
    """

    name = "json"

    def pack(self, payload: Any) -> bytes:
        """Return an encoded payload."""
        try:
            text = _encode(portable(payload, self.max_depth, _RULES))
        except (ValueError, RecursionError) as error:
            raise EncodeError(f"a payload has no JSON: {error}") from error
        return text.encode("utf-8", "backslashreplace")

    def encode(self, envelope: Envelope, packed: bytes) -> bytes:
        """Return the encoded message of ``envelope``, with ``packed`` as its payload."""
        quote = encode_basestring
        optional = ""
        if envelope.service is not None:
            optional = f',"serviceName":{quote(envelope.service)}'
        if envelope.procedure is not None:
            optional += f',"procedureName":{quote(envelope.procedure)}'
        if envelope.tracing is not None:
            parent, state = map(quote, envelope.tracing)
            optional += f',"tracing":{{"traceparent":{parent},"tracestate":{state}}}'
        if envelope.timeout is not None:
            optional += f',"timeoutMs":{envelope.timeout}'
        head = (
            f'{{"id":{quote(envelope.id)},"from":{quote(envelope.sender)}'
            f',"to":{quote(envelope.receiver)},"seq":{envelope.seq},"ack":{envelope.ack}'
            f',"streamId":{quote(envelope.stream_id)},"controlFlags":{envelope.flags}'
            f'{optional},"payload":'
        )
        return b"".join((head.encode("utf-8", "backslashreplace"), packed, b"}"))

    def decode(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Decode a message."""
        data = bytes(data)
        if data.count(b"[") + data.count(b"{") > self.max_depth + 1:
            _check_depth(data, self.max_depth + 1)
        try:
            text = str(data, "utf-8")
            bounded = 0 < get_int_max_str_digits() <= MAX_DIGITS
            plain = bounded and "$" not in text and "\\u0024" not in text
            text = text.strip(_SPACES)
            fields, end = (_PLAIN if plain else _CAREFUL).raw_decode(text)
            if end != len(text):
                raise ValueError(f"there are {len(text) - end} characters after its end")
        except (ValueError, RecursionError) as error:
            raise EnvelopeError(f"a message must be JSON: {error}") from error
        return Envelope.from_fields(fields)

    def decode_head(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Decode a message without its payload, which is skipped."""
        data = bytes(data)
        head, at = Head(len(data)), 0
        matches = _field(self.max_depth).match
        while field := matches(data, at):
            if field["name"] == b'"payload"':
                head.add(data[at : field.start("value")] + b"null")
            else:
                head.add(memoryview(data)[at : field.end()])
            at = field.end()
        head.add(memoryview(data)[at:])  # the closing brace, or a syntax error
        return self.decode(head.data())._replace(payload=None)


@cache
def _field(depth: int) -> re.Pattern[bytes]:
    """Return a pattern for one field of a message whose payload has at most ``depth`` levels.

    It finds the end of the value, without validating it. All its quantifiers are possessive: as it
    never backtracks, it takes linear time and no memory.
    """
    text = rb'"(?:[^"\\]++|\\.)*+"'
    inner = rb'(?:[^"\[\]{}]++|' + text + rb")*+"
    for _ in range(depth - 1):
        inner = rb'(?:[^"\[\]{}]++|' + text + rb"|[\[{]" + inner + rb"[\]}])*+"
    value = rb'(?:[^"\[\]{},]++|' + text + rb"|[\[{]" + inner + rb"[\]}])++"
    return re.compile(rb"\s*+[{,]\s*+(?P<name>" + text + rb")\s*+:(?P<value>" + value + rb")", re.S)


def _check_depth(data: bytes, room: int) -> None:
    """Refuse more than ``room`` levels, before the parser, which is recursive, reads them.

    Strings are removed first. Without escapes each quote begins or ends a string, and two adjacent
    quotes can be removed without any effect on the rest.
    """
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_STEPS, _OTHERS)
    steps = b"".join(marks.replace(b'""', b"").split(b'"')[::2])
    if max(accumulate(memoryview(steps).cast("b")), default=0) > room:
        raise EnvelopeError("a message nests deeper than max_depth")


def _replace(value: Any, room: int) -> dict[str, str]:
    if isinstance(value, int):
        level_below(room)
        return {"$b": big_text(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        level_below(room)
        return {"$t": b2a_base64(bytes(value), newline=False).decode()}
    raise EncodeError(f"JSON cannot encode {type(value).__name__}")


_RULES = Rules(frozenset({str, float, bool, type(None)}), frozenset({"$t", "$b"}), _replace)
_encode = JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
).encode


def _convert(fields: dict[str, Any]) -> Any:
    """Return the bytes or the bigint that an object represents, or the object itself."""
    if "$t" in fields:
        text = fields["$t"]
        try:
            if type(text) is str:
                return a2b_base64(text, strict_mode=True)
        except ValueError as error:
            raise EnvelopeError(f"$t must be padded base64: {error}") from error
        raise EnvelopeError("$t must be padded base64, in a string")
    return parse_big(fields["$b"]) if "$b" in fields else fields


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError("a number beyond 64 bits")
    return number


def _constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


# Calling Python for each object and integer is slow, and most messages need neither.
_PLAIN = JSONDecoder(parse_float=_finite, parse_constant=_constant)
_CAREFUL = JSONDecoder(
    object_hook=_convert, parse_int=_whole, parse_float=_finite, parse_constant=_constant
)


def codec_of(codec: str | Codec) -> Codec:
    """Return the codec named ``"json"``, ``"msgpack"`` or ``"protobuf"``, with its default limits.

    A ``Codec`` is returned as it is.

    Raises:
        ValueError: there is no codec of that name.
        ImportError: it needs a package that is not installed.
    """
    if isinstance(codec, Codec):
        return codec
    if codec == JsonCodec.name:
        return JsonCodec()
    if codec == "msgpack":
        from .msgpack_codec import MsgpackCodec  # needs a package that JSON does not

        return MsgpackCodec()
    if codec == "protobuf":
        from .protobuf_codec import ProtobufCodec  # needs one more

        return ProtobufCodec()
    raise ValueError(f"codec must be 'json', 'msgpack' or 'protobuf', not {codec!r}")
