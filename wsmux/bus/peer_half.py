"""Hold what both directions of a gateway work with."""

from __future__ import annotations

from .asked import Asked
from .endpoint import Endpoint
from .peer_redis import PeerRedis
from .transport import Transport
from .uploads import Uploads

__all__ = ["Half"]


class Half:
    """Be one direction: ``Outgoing`` or ``Incoming``.

    Args:
        endpoint: speaks for the twin.
        transport: the relays.
        store: the lists of programs.
        asked: what is remembered of the requests of others.
        uploads: takes and sends files.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        transport: Transport,
        store: PeerRedis,
        asked: Asked,
        uploads: Uploads,
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._store = store
        self._asked = asked
        self._uploads = uploads
