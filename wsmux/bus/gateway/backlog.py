"""Remember, as bytes, which program waits for the answer to an envelope.

The gateway keeps them in Redis as the original one does, so that either can go on with the list of
the other. The original keeps one for all destinations of a request; this one makes an envelope with
an id of its own for each, so that a backlog ends with its answer and a second answer finds none.
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
        uid: that of the envelope.
        reference: what the program calls its request.
        reply_to: the list that it waits at.
        module: the plugin that waits, if it is no program.
        life: seconds that the request had left when it was sent.
    """

    uid: str
    reference: str | None
    reply_to: str
    module: str | None
    life: int


def backlog_key(uid: str) -> str:
    """Return where in Redis it is kept."""
    return f"msgbus.backlog.{uid}"


def encode_backlog(waiting: Waiting) -> bytes:
    """Return the bytes that are kept."""
    message = Backlog(
        uid=waiting.uid,
        reference=waiting.reference,
        reply_to=waiting.reply_to,
        module=waiting.module,
        ttl=waiting.life,
    )
    return message.SerializeToString()


def decode_backlog(data: bytes) -> Waiting:
    """Read what is kept.

    Raises:
        BadMessage: it is something else.
    """
    try:
        message = Backlog.FromString(data)
    except DecodeError as error:
        raise BadMessage("the stored state of a request cannot be read") from error
    reference = message.reference if message.HasField("reference") else None
    module = message.module if message.HasField("module") else None
    return Waiting(message.uid, reference, message.reply_to, module, message.ttl)
