"""Keep the offsets of durable streams in Redis, in the same transaction as their effects.

::

    offsets = RedisOffsets(client)

    def handle(stream):
        while lines := read_lines(stream):
            with client.pipeline(transaction=True) as pipeline:
                pipeline.rpush("lines", *lines)
                offsets.record(pipeline, stream.name, stream.epoch, stream.offset)
                pipeline.execute()
            stream.commit()

Redis runs a transaction as a whole, so offset and effect are both there or neither is. What of it
survives a crash of Redis is up to its ``appendfsync``; they survive together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocols.durable import Refusal
from .errors import DurableRefused

if TYPE_CHECKING:
    import redis

__all__ = ["RedisOffsets"]

# KEYS: the name. ARGV: epoch, offset. Returns the committed offset if that is more, else nothing.
# Texts are compared, since numbers of Lua are not exact beyond 53 bits.
_COMMIT = """
local known = redis.call('HMGET', KEYS[1], 'epoch', 'offset')
if known[1] == ARGV[1] then
  local before = known[2]
  if #before > #ARGV[2] or (#before == #ARGV[2] and before > ARGV[2]) then return before end
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'offset', ARGV[2])
return ''
"""


class RedisOffsets:
    """Keep offsets in Redis, a hash for each name. Any thread may use it.

    Args:
        client: belongs to the caller; its timeouts bound each call.
        prefix: of the keys.
    """

    def __init__(self, client: redis.Redis, prefix: str = "wsmux:offsets:") -> None:
        self._client: Any = client
        self._prefix = prefix

    def committed(self, name: str, epoch: bytes) -> int:
        """Return the committed offset; 0 if the name is unknown, or has another epoch."""
        known, offset = self._client.hmget(f"{self._prefix}{name}", "epoch", "offset")
        return int(offset) if known is not None and _text(known) == epoch.hex() else 0

    def commit(self, name: str, epoch: bytes, offset: int) -> None:
        """Record an offset by itself.

        Raises:
            DurableRefused: more of the stream is committed already, by another receiver.
        """
        before = _text(self._client.eval(_COMMIT, 1, *self._arguments(name, epoch, offset)))
        if before:
            raise DurableRefused(
                Refusal.SUPERSEDED,
                f"{before} bytes of {name!r} are committed, more than the {offset} to record",
            )

    def record(self, pipeline: Any, name: str, epoch: bytes, offset: int) -> None:
        """Record an offset in the caller's transaction, which the caller executes.

        If more is committed already, by another receiver, the offset stays, but Redis runs the rest
        of the transaction all the same. ``DurableHandler`` runs one handler of a name at a time;
        where several processes receive the same names, see to that yourself.

        Args:
            pipeline: with ``transaction=True``, which has the effect.
            name, epoch: of the stream.
            offset: behind what has its effect in this transaction.
        """
        pipeline.eval(_COMMIT, 1, *self._arguments(name, epoch, offset))

    def _arguments(self, name: str, epoch: bytes, offset: int) -> tuple[str, str, str]:
        return f"{self._prefix}{name}", epoch.hex(), str(offset)


def _text(value: Any) -> str:
    """Return a reply as text, of a client that decodes replies or not."""
    return value if isinstance(value, str) else bytes(value).decode()
