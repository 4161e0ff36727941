"""Define the errors of a cluster."""

from __future__ import annotations

from ..exceptions import WsmuxError

__all__ = ["ClusterError", "NotConnected", "TopicGap", "Unreachable"]


class ClusterError(WsmuxError):
    """The base class of the errors of a cluster."""


class NotConnected(ClusterError):
    """Report that nobody holds a name: no connection had joined under it, or it has left."""

    retry_safe = True


class Unreachable(ClusterError, ConnectionError):
    """Report that Redis, or the node of a connection, could not be reached in time.

    A stream may have been opened at the other end, where it is reset.
    """

    retry_safe = True


class TopicGap(ClusterError):
    """Report messages of a topic that a subscription will not get.

    Reading goes on behind them.

    Attributes:
        topic: the topic.
        after: the position of the last message before the gap, as text.
        before: the position of the first message behind it, as text.
        count: how many are missing; ``None`` if unknown, since the topic was begun again: Redis was
            restarted, and may have lost some, or the topic was idle for too long. Then there may be
            none.
    """

    def __init__(self, topic: str, after: str, before: str, count: int | None) -> None:
        if count is None:
            text = f"topic {topic!r} was begun again, and may have lost messages after {after}"
            fix = "if that matters, have Redis write each command to disk (appendfsync always)"
        else:
            text = f"{count} messages of {topic!r} after {after} were dropped before they were read"
            fix = "read faster, or keep more (retention=)"
        super().__init__(f"{text}: {fix}")
        self.topic = topic
        self.after = after
        self.before = before
        self.count = count
