"""Encode River's messages as msgpack, like the binary codec of the TypeScript original.

Bytes are written as bin, strings as str. A bigint is an extension of type 0 whose body is msgpack
too: an integer up to 2^53-1 in size, else decimal text. A ``datetime`` with a time zone is a
timestamp (type -1), exact to the microsecond; other extension types are refused. NaN and infinities
are allowed in payloads, as in the original. Integers of every width are read exactly.

Keys are handled as in JavaScript: in a payload, an integer up to 2^53-1 in size becomes its decimal
text, and every other key that is not a string is refused. The keys of the message itself must be
strings. Strings must be valid UTF-8, where the original would insert U+FFFD. ``__proto__`` is
refused as a key when sent, because the original ends the session over it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ...runtime.hints import how_to_install

try:
    from msgpack import ExtType, Packer, Unpacker, packb, unpackb
    from msgpack.exceptions import StackError, UnpackException
except ImportError as error:
    raise ImportError(f"wsmux.rpc needs msgpack: {how_to_install('rpc')}") from error

from .codec import Codec, EncodeError
from .envelope import Envelope, EnvelopeError
from .message_size import Head
from .values import MAX_SAFE, MIN_SAFE, BigInt, Rules, big_text, parse_big, portable

__all__ = ["MsgpackCodec"]

BIGINT = 0

# The first bytes of arrays whose length has two and four bytes.
_ARRAY_16, _ARRAY_32 = b"\xdc", b"\xdd"

_PAYLOAD, _NIL = packb("payload"), packb(None)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MsgpackCodec(Codec):
    """Encode and decode messages as msgpack; see ``Codec``.

    Payloads may contain ``None``, ``bool``, ``int``, ``float``, ``str``, bytes-like objects, lists,
    tuples, mappings with string keys, and datetimes with a time zone.
    """

    name = "msgpack"

    def pack(self, payload: Any) -> bytes:
        """Return an encoded payload."""
        try:
            packed: bytes = packb(portable(payload, self.max_depth, _RULES), datetime=True)
        except (ValueError, OverflowError, RecursionError) as error:
            raise EncodeError(f"a payload has no msgpack: {error}") from error
        return packed

    def encode(self, envelope: Envelope, packed: bytes) -> bytes:
        """Return the encoded message of ``envelope``, with ``packed`` as its payload."""
        try:
            head = packb(envelope.head())
        except ValueError as error:
            raise EncodeError(f"a message has no msgpack: {error}") from error
        # The first byte holds the number of fields, up to 15; the payload is one more.
        return b"".join((bytes((head[0] + 1,)), head[1:], _PAYLOAD, packed))

    def decode(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Decode a message."""
        try:
            fields = _unpack(bytes(data))
        except (ValueError, OverflowError, UnpackException) as error:
            raise _refusal(error) from error
        if type(fields) is dict:
            if bytes in map(type, fields):
                raise EnvelopeError("a key of a message must be a string")
            _check_payload(fields.get("payload"), self.max_depth)
        return Envelope.from_fields(fields)

    def decode_head(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Decode a message without its payload, which is skipped."""
        try:
            head = _without_payload(bytes(data))
        except (ValueError, OverflowError, UnpackException) as error:
            raise _refusal(error) from error
        return self.decode(head)._replace(payload=None)


def _refusal(error: Exception) -> EnvelopeError:
    """Return the error for a message that msgpack failed to decode."""
    if isinstance(error, StackError):
        return EnvelopeError("a message nests deeper than max_depth")
    return EnvelopeError(f"a message must be msgpack: {str(error) or type(error).__name__}")


def _without_payload(data: bytes) -> bytes:
    """Return a message with nil for its payload."""
    reader = Unpacker(max_buffer_size=len(data))
    reader.feed(data)
    count = reader.read_map_header()
    head = Head(len(data))
    head.add(Packer().pack_map_header(count))
    for _ in range(count):
        start = reader.tell()
        reader.skip()
        value = reader.tell()
        reader.skip()
        if data[start:value] == _PAYLOAD:
            head.add(_PAYLOAD + _NIL)
        else:
            head.add(memoryview(data)[start : reader.tell()])
    head.add(memoryview(data)[reader.tell() :])  # trailing bytes, which the decoder refuses
    return head.data()


def _replace(value: Any, room: int) -> Any:
    if isinstance(value, int):
        small = MIN_SAFE <= value <= MAX_SAFE
        return ExtType(BIGINT, packb(int(value) if small else big_text(value)))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise EncodeError("a datetime without a time zone cannot be sent")
        return _EPOCH + (value - _EPOCH)  # msgpack refuses subclasses
    raise EncodeError(f"msgpack cannot encode {type(value).__name__}")


_RULES = Rules(frozenset({str, float, bool, type(None), bytes}), frozenset({"__proto__"}), _replace)


def _unpack(data: bytes) -> Any:
    """Decode ``data``; keys are strings or bytes, and integers become strings."""
    if _ARRAY_16 in data or _ARRAY_32 in data:
        # msgpack before 1.2 allocates a list of the announced length at once, so a few bytes of
        # nested heads could take terabytes. Skipping first ensures that all items are there.
        whole = Unpacker(max_buffer_size=len(data))
        whole.feed(data)
        whole.skip()
    try:
        return unpackb(data, ext_hook=_extension, timestamp=3, strict_map_key=True)
    except ValueError as error:
        if "allowed for map key" not in str(error):
            raise
    renamed: list[dict[str, Any]] = []

    def named(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        """Return an object whose integer keys are replaced by their text."""
        found = {_name(key): value for key, value in pairs}
        if not all(type(key) is str for key, _ in pairs):
            renamed.append(found)
        return found

    fields = unpackb(
        data, ext_hook=_extension, timestamp=3, strict_map_key=False, object_pairs_hook=named
    )
    if any(found is fields for found in renamed):
        raise EnvelopeError("a key of a message must be a string")
    return fields


def _name(key: Any) -> str:
    if type(key) is int and MIN_SAFE <= key <= MAX_SAFE:
        return str(key)
    if type(key) is not str:
        raise EnvelopeError("a key of an object must be a string, or a whole number within 2^53-1")
    return key


def _extension(code: int, body: bytes) -> BigInt:
    if code != BIGINT:
        raise EnvelopeError(f"extension type {code} is not known")
    value = unpackb(body, max_array_len=0, max_map_len=0)
    return BigInt(value) if type(value) is int else parse_big(value)


def _check_payload(payload: Any, room: int) -> None:
    """Refuse more levels than ``room``, and keys that are bytes."""
    level = [payload] if type(payload) is dict or type(payload) is list else []
    while level:
        if not room:
            raise EnvelopeError("a payload nests deeper than max_depth")
        room -= 1
        inner: list[Any] = []
        for value in level:
            if type(value) is dict:
                if bytes in map(type, value):
                    raise EnvelopeError("a key of an object must be a string, not bytes")
                inner.extend(value.values())
            else:
                inner.extend(value)
        level = [value for value in inner if type(value) is dict or type(value) is list]
