"""Encode River's messages as protobuf, like the protobuf codec of the TypeScript original.

``river.proto`` describes the message. A payload of bytes has a field of its own, and is written as
it is. Every other payload, such as an error or a half-close, is packed with msgpack by the rules of
``msgpack_codec`` into another field.

As usual in protobuf, an absent string is the same as an empty one: a procedure with an empty name
cannot be called, and missing ids are empty. Unknown fields are ignored, and the last of a repeated
field counts. Strings must be valid UTF-8. Counters have 32 bits: a session that has sent 2^32
messages can send no more. The caller's timeout, ``timeoutMs`` in the other
codecs, has a field that the original's message lacks, and that the original therefore ignores.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ...runtime.hints import how_to_install

try:
    from google.protobuf import descriptor_pb2, message_factory
    from google.protobuf.message import DecodeError
except ImportError as error:
    raise ImportError(
        f"the protobuf codec of wsmux.rpc needs protobuf: {how_to_install('rpc')}"
    ) from error

from .codec import MAX_DEPTH, Codec, EncodeError
from .envelope import MAX_COUNTER, Envelope, EnvelopeError
from .message_size import ENVELOPE_ROOM
from .msgpack_codec import MsgpackCodec

if TYPE_CHECKING:
    from .river_pb2 import Message
else:
    # A descriptor pool of its own, as in ``wsmux.bus.wire.messages``.
    _described = files(__package__).joinpath("river.binpb").read_bytes()
    _files = descriptor_pb2.FileDescriptorSet.FromString(_described).file
    Message = message_factory.GetMessages(_files)["wsmux.river.Message"]

__all__ = ["ProtobufCodec"]

# The tags of the two fields for payloads: their number, with the wire type of a length.
_RAW = bytes((Message.RAW_FIELD_NUMBER << 3 | 2,))
_MSGPACK = bytes((Message.MSGPACK_FIELD_NUMBER << 3 | 2,))

# The start of a message in msgpack; with a payload appended, that codec decodes it.
_AROUND = MsgpackCodec().encode(Envelope("", "", "", 0, 0, "", 0, None), b"")


class ProtobufCodec(Codec):
    """Encode and decode messages as protobuf; see ``Codec``.

    Payloads may contain the same values as those of ``MsgpackCodec``.
    """

    name = "protobuf"

    def __init__(self, max_depth: int = MAX_DEPTH) -> None:
        super().__init__(max_depth)
        self._msgpack = MsgpackCodec(max_depth)

    def pack(self, payload: Any) -> bytes:
        """Return an encoded payload with the tag of its field, and without its length."""
        if isinstance(payload, (bytes, bytearray, memoryview)):
            return _RAW + bytes(payload)
        return _MSGPACK + self._msgpack.pack(payload)

    def encode(self, envelope: Envelope, packed: bytes) -> bytes:
        """Return the encoded message of ``envelope``, with ``packed`` as its payload."""
        try:
            message = Message(
                id=envelope.id,
                sender=envelope.sender,
                receiver=envelope.receiver,
                seq=envelope.seq,
                ack=envelope.ack,
                stream_id=envelope.stream_id,
                flags=envelope.flags,
                service=envelope.service,
                procedure=envelope.procedure,
                timeout_ms=envelope.timeout,
            )
            if envelope.tracing is not None:
                parent, state = envelope.tracing
                message.tracing.SetInParent()
                message.tracing.traceparent, message.tracing.tracestate = parent, state
            head = message.SerializeToString()
        except ValueError as error:
            raise EncodeError(f"a message has no protobuf: {error}") from error
        # In protobuf, concatenated messages are merged.
        body = memoryview(packed)[1:]
        return b"".join((head, packed[:1], _length(len(body)), body))

    def decode(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Decode a message."""
        message = _parsed(bytes(data))
        if message.WhichOneof("payload") == "raw":
            return _envelope(message, message.raw)
        return _envelope(message, self._msgpack.decode(_AROUND + message.msgpack).payload)

    def decode_head(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Decode a message without its payload, which is not read."""
        data = bytes(data)
        message = _parsed(data)
        if len(data) - len(message.raw) - len(message.msgpack) > ENVELOPE_ROOM:
            raise EnvelopeError(
                f"a message of {len(data)} bytes has more than {ENVELOPE_ROOM} beside its payload"
            )
        return _envelope(message, None)


def _parsed(data: bytes) -> Message:
    """Return the parsed message; its payload is present, and not yet decoded."""
    try:
        message = Message.FromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise EnvelopeError(f"a message must be protobuf: {error}") from error
    if message.WhichOneof("payload") is None:
        raise EnvelopeError("a message without a payload")
    return message


def _envelope(message: Message, payload: Any) -> Envelope:
    tracing = message.tracing if message.HasField("tracing") else None
    timeout = message.timeout_ms if message.HasField("timeout_ms") else None
    if timeout is not None and timeout > MAX_COUNTER:
        raise EnvelopeError("timeout_ms of a message must be at most 2^53-1")
    return Envelope(
        message.id,
        message.sender,
        message.receiver,
        message.seq,
        message.ack,
        message.stream_id,
        message.flags,
        payload,
        message.service or None,
        message.procedure or None,
        None if tracing is None else (tracing.traceparent, tracing.tracestate),
        timeout,
    )


def _length(size: int) -> bytes:
    """Return a length as a varint: seven bits in each byte, the lowest first."""
    digits = bytearray()
    while size > 0x7F:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    digits.append(size)
    return bytes(digits)
