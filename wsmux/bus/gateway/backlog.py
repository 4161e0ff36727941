"""Encode which program waits for the answer to an envelope.

The gateway keeps these records in Redis in the format of the reference gateway, so either can
continue with the requests of the other. The reference gateway keeps one record for all destinations
of a request; this one sends each destination an envelope with an id of its own, so a record ends
with its answer and a second answer finds none.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from ..errors import BadMessage
from ..wire.messages import Backlog

__all__ = ["Waiting", "backlog_key", "decode_backlog", "encode_backlog"]


class Waiting(NamedTuple):
    """Describe a request that waits for an answer.

    Attributes:
        uid: the uid of the envelope.
        reference: the program's own name for its request.
        reply_to: the list on which the program waits.
        module: the plugin that waits, if it is not a program.
        life: seconds that the request had left when it was sent.
    """

    uid: str
    reference: str | None
    reply_to: str
    module: str | None
    life: int


def backlog_key(uid: str) -> str:
    """Return the Redis key of a record."""
    return f"msgbus.backlog.{uid}"


def encode_backlog(waiting: Waiting) -> bytes:
    """Return a record as it is stored."""
    message = Backlog(
        uid=waiting.uid,
        reference=waiting.reference,
        reply_to=waiting.reply_to,
        module=waiting.module,
        ttl=waiting.life,
    )
    return message.SerializeToString()


def decode_backlog(data: bytes) -> Waiting:
    """Parse a stored record.

    Raises:
        BadMessage: the bytes are not a record.
    """
    try:
        message = Backlog.FromString(data)
    except DecodeError as error:
        raise BadMessage("the stored state of a request cannot be read") from error
    reference = message.reference if message.HasField("reference") else None
    module = message.module if message.HasField("module") else None
    return Waiting(message.uid, reference, message.reply_to, module, message.ttl)
