"""Validate a client's metadata, at its handshake and on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...runtime import clock
from ...runtime.logs import logger
from ..schema import Schema
from ..wire.handshake import RefusalCode
from .session import Session

__all__ = ["InvalidMetadata", "MetadataValidation", "Parsed", "Rejection"]

_log = logger("wsmux.rpc")


class Rejection(Exception):
    """Raised by a function that validates metadata, to refuse the client.

    Args:
        reason: a sentence that is sent to the client.
        unsupported: the client is too old, or for another reason should not retry.
    """

    def __init__(self, reason: str = "", unsupported: bool = False) -> None:
        super().__init__(reason or "rejected by the server")
        self.unsupported = unsupported


@dataclass(frozen=True, slots=True)
class _Owner:
    """Whose session it is, where the application has named the user of the connection."""

    user: str
    identity: object


class Parsed(NamedTuple):
    """Metadata as given to handlers, valid until ``expires`` on the monotonic clock."""

    metadata: Any
    expires: float | None
    owner: object = None


class InvalidMetadata(NamedTuple):
    """The reason why metadata was refused."""

    code: RefusalCode
    reason: str


@dataclass(frozen=True, slots=True)
class MetadataValidation:
    """Validate metadata with the application's functions, which may block; see ``Serving``."""

    schema: Schema | None = None
    validate: Callable[[Any, Any, str], Any] | None = None
    expiry: Callable[[Any], float | None] | None = None
    identity: Callable[[Any], object] | None = None

    def check(
        self,
        metadata: Any,
        previous: Any,
        client_id: str,
        session: Session | None = None,
        user: str | None = None,
    ) -> Parsed | InvalidMetadata:
        """Return the metadata for handlers, or the reason for refusing the client.

        New metadata for a ``session`` must name its owner, who is the ``user`` of its connection,
        too, if there is one.

        Metadata that has already expired is refused; other servers accept it until they first
        request new metadata.
        """
        if self.schema is not None and self.schema.check(metadata) is not None:
            text = "received malformed handshake metadata"
            return InvalidMetadata(RefusalCode.MALFORMED_HANDSHAKE_META, text)
        try:
            parsed = metadata
            if self.validate is not None:
                parsed = self.validate(metadata, previous, client_id)
            left = self._seconds_left(parsed)
            owner = None if self.identity is None else self.identity(parsed)
            if user is not None:
                owner = _Owner(user, owner)
        except Rejection as error:
            if error.unsupported:
                return InvalidMetadata(RefusalCode.REJECTED_UNSUPPORTED_CLIENT, str(error))
            return InvalidMetadata(RefusalCode.REJECTED_BY_CUSTOM_HANDLER, str(error))
        except Exception:
            _log.exception("the validation of a handshake failed")
            text = "the validation of the handshake failed"
            return InvalidMetadata(RefusalCode.REJECTED_BY_CUSTOM_HANDLER, text)
        if session is not None and session.owner != owner:
            text = "the metadata are of another identity than before"
            return InvalidMetadata(RefusalCode.REJECTED_BY_CUSTOM_HANDLER, text)
        if left is None:
            return Parsed(parsed, None, owner)
        if left <= 0:
            text = "the metadata have expired"
            return InvalidMetadata(RefusalCode.REJECTED_BY_CUSTOM_HANDLER, text)
        return Parsed(parsed, clock.monotonic() + left, owner)

    def _seconds_left(self, parsed: Any) -> float | None:
        expires = None if self.expiry is None else self.expiry(parsed)
        return None if expires is None else expires - time.time()
