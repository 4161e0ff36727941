"""Make publications to topics, signed by whom a test names."""

from __future__ import annotations

import time
import uuid

from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import digest, request
from wsmux.bus.wire.keys import Identity
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.topics import PUBLISH, Publication, publish_body

__all__ = ["publication"]


def publication(
    identity: Identity,
    source: Address,
    data: bytes = b"1",
    topic: str = "news",
    schema: str = "text/plain",
) -> Envelope:
    """Return what a client sends to publish."""
    uid, now = str(uuid.uuid4()), int(time.time())
    body = publish_body(topic, Publication(source, uid, now, schema, data), identity.sign)
    made = request(uid, source, Address(0), PUBLISH, now, 60, plain=body)
    made.signature = identity.sign(digest(made))
    return made
