"""Build and validate the messages of River, and the payloads common to all calls.

Other implementations differ from the specification, "Clients, servers": ``tracing`` may be present,
unknown fields and flag bits are ignored, and absent fields are left out instead of being null.

Beyond the specification, a message that opens a call may have ``timeoutMs``: the whole milliseconds
for which its caller still waits when the message is sent. A duration needs no common clock. Other
implementations ignore the field, and send none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from ...exceptions import RemoteProtocolError
from ..errors import CANCEL, RiverError

__all__ = [
    "ACK",
    "CANCELLED",
    "CLOSED",
    "CLOSE_PAYLOAD",
    "HEARTBEAT_STREAM",
    "INVALID_CANCEL",
    "MAX_ID",
    "OPEN",
    "Envelope",
    "EnvelopeError",
    "NotAResult",
    "Oversize",
    "error_result",
    "is_close",
    "read_cancel",
    "read_result",
    "result",
    "timeout_field",
]

ACK, OPEN, CANCELLED, CLOSED = 1, 2, 4, 8

# Characters of an id; shipped ones have 12 to 21. Every message of a session carries them.
MAX_ID = 1024

HEARTBEAT_STREAM = "heartbeat"

# JavaScript cannot distinguish larger counters.
MAX_COUNTER = 2**53 - 1

_TEXTS = ("id", "from", "to", "streamId")
_COUNTS = ("seq", "ack", "controlFlags")
_required = itemgetter(*_TEXTS, *_COUNTS, "payload")


class EnvelopeError(RemoteProtocolError):
    """Report a message that cannot be decoded, or is not a River message."""


class Oversize(NamedTuple):
    """Replace a payload that was too large to be read; ``size`` is that of its message."""

    size: int
    max_size: int  # of this end

    def text(self) -> str:
        """Return a sentence for the sender, and for the caller that waits."""
        return (
            f"a message of {self.size} bytes is above the receiver's Options.max_size, "
            f"{self.max_size}: send it in parts, or raise max_size at both ends"
        )


class Envelope(NamedTuple):
    """A message; ``seq`` and ``ack`` are those of its sender's session."""

    id: str
    sender: str
    receiver: str
    seq: int
    ack: int
    stream_id: str
    flags: int
    payload: Any
    service: str | None = None
    procedure: str | None = None
    tracing: tuple[str, str] | None = None  # traceparent and tracestate
    timeout: int | None = None  # milliseconds that the caller still waits

    @classmethod
    def from_fields(cls, fields: Any) -> Envelope:
        """Return the message with the given decoded fields.

        Raises:
            EnvelopeError: a field is missing, or of the wrong type.
        """
        if not isinstance(fields, dict):
            raise EnvelopeError("a message must be an object")
        try:
            id_, sender, receiver, stream_id, seq, ack, flags, payload = _required(fields)
        except KeyError:
            if "payload" not in fields:
                raise EnvelopeError("a message without a payload") from None
            id_ = payload = None  # to be refused with the name of what is missing
            sender = receiver = stream_id = seq = ack = flags = None
        if not (
            type(id_) is type(sender) is type(receiver) is type(stream_id) is str
            and type(seq) is type(ack) is type(flags) is int
            and 0 <= seq | ack | flags <= MAX_COUNTER  # of 53 bits, so each is within them
        ):
            id_, sender, receiver, stream_id = (_text(fields, name) for name in _TEXTS)
            seq, ack, flags = (_count(fields, name) for name in _COUNTS)
        required = (id_, sender, receiver, seq, ack, stream_id, flags, payload)
        if len(fields) == len(required):
            return cls._make((*required, None, None, None, None))
        service = _text(fields, "serviceName") if "serviceName" in fields else None
        procedure = _text(fields, "procedureName") if "procedureName" in fields else None
        tracing = _tracing(fields) if "tracing" in fields else None
        timeout = _count(fields, "timeoutMs") if "timeoutMs" in fields else None
        return cls._make((*required, service, procedure, tracing, timeout))

    def head(self) -> dict[str, Any]:
        """Return all fields except the payload, as sent."""
        fields: dict[str, Any] = {
            "id": self.id,
            "from": self.sender,
            "to": self.receiver,
            "seq": self.seq,
            "ack": self.ack,
            "streamId": self.stream_id,
            "controlFlags": self.flags,
        }
        if self.service is not None:
            fields["serviceName"] = self.service
        if self.procedure is not None:
            fields["procedureName"] = self.procedure
        if self.tracing is not None:
            parent, state = self.tracing
            fields["tracing"] = {"traceparent": parent, "tracestate": state}
        if self.timeout is not None:
            fields["timeoutMs"] = self.timeout
        return fields


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise EnvelopeError(f"{name} of a message must be a string")
    return value


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JavaScript has no other numbers
    # Neither a bool nor a bigint is one of its numbers, though Python derives them from int.
    if type(value) is not int or not 0 <= value <= MAX_COUNTER:
        raise EnvelopeError(f"{name} of a message must be a whole number from 0 to 2^53-1")
    return value


def _tracing(fields: dict[str, Any]) -> tuple[str, str]:
    tracing = fields["tracing"]
    if not isinstance(tracing, dict):
        raise EnvelopeError("tracing of a message must be an object")
    return _text(tracing, "traceparent"), _text(tracing, "tracestate")


def timeout_field(seconds: float) -> int:
    """Return the remaining time of a caller as it is sent: never shorter than it is.

    So a server that counts from the arrival of the message is never ahead of the caller.
    """
    return min(math.ceil(max(0.0, min(seconds, MAX_COUNTER)) * 1000), MAX_COUNTER)


CLOSE_PAYLOAD = {"type": "CLOSE"}

INVALID_CANCEL = "stream cancelled with invalid payload"


class NotAResult(ValueError):
    """Report a payload that is neither a result nor the end of a half."""


def is_close(payload: Any) -> bool:
    """Return whether a payload only closes a half."""
    # That a dict is a mapping, the abstract class would find out slowly.
    mapping = isinstance(payload, (dict, Mapping))
    return mapping and payload.get("type") == "CLOSE" and "ok" not in payload


def result(value: Any) -> dict[str, Any]:
    """Return the payload for a response."""
    return {"ok": True, "payload": value}


def error_result(error: RiverError) -> dict[str, Any]:
    """Return the payload for an error."""
    return {"ok": False, "payload": error.payload()}


def read_result(payload: Any) -> Any:
    """Return the response in a payload, or its ``RiverError``.

    Raises:
        NotAResult: it contains neither.
    """
    if isinstance(payload, (dict, Mapping)):
        if payload.get("ok") is True and "payload" in payload:
            return payload["payload"]
        error = payload.get("payload")
        if payload.get("ok") is False and isinstance(error, Mapping):
            code, message = error.get("code"), error.get("message")
            if isinstance(code, str) and isinstance(message, str):
                return RiverError.from_payload(error)
    raise NotAResult("the payload is not a result")


def read_cancel(payload: Any) -> RiverError:
    """Return the error in a cancelling message, or CANCEL if it has none."""
    if isinstance(payload, Oversize):
        return RiverError(CANCEL, payload.text())
    try:
        error = read_result(payload)
    except NotAResult:
        error = None
    if isinstance(error, RiverError):
        return error
    return RiverError(CANCEL, INVALID_CANCEL)
