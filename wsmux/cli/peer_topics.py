"""Publish lines to a topic of a relay, or print its messages, with ``wsmux peer``.

Publishing prints the position of each line, once it is kept. Subscribing prints each message on a
line, texts as they are and anything else as JSON, until Ctrl-C. What was dropped before it was read
is told on stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from base64 import b64encode
from collections.abc import Iterable

from ..bus.client import Client
from ..bus.errors import BusError
from ..bus.topics import TopicMessage
from ..bus.wire.keys import Identity
from ..bus.wire.topics import MessageRefused, TopicGap, check_topic
from .terminal import CommandError, emit, talk

__all__ = ["publish", "subscribe"]


def publish(identity: Identity, texts: list[str], args: argparse.Namespace) -> int:
    """Publish a message, or each line of stdin."""
    topic = _topic(args)
    lines: Iterable[str] = sys.stdin if args.message is None else [args.message]
    with Client(identity, args.relay, texts, twin=args.twin) as client:
        for line in lines:
            try:
                position = client.publish(topic, line.removesuffix("\n"), timeout=args.timeout)
            except BusError as error:
                raise CommandError(str(error)) from error
            emit(json.dumps({"position": str(position)}) if args.json else str(position))
    return 0


def subscribe(identity: Identity, texts: list[str], args: argparse.Namespace) -> int:
    """Print the messages of a topic until Ctrl-C."""
    topic = _topic(args)
    with Client(identity, args.relay, texts, twin=args.twin) as client:
        try:
            subscription = client.subscribe(topic, start=args.start, timeout=args.timeout)
        except BusError as error:
            raise CommandError(str(error)) from error
        talk(f"subscribed to {topic} after {subscription.position}; Ctrl-C ends it")
        with subscription:
            while True:
                try:
                    message = subscription.read()
                except (TopicGap, MessageRefused) as error:
                    talk(str(error))
                except BusError as error:
                    raise CommandError(str(error)) from error
                else:
                    emit(_shown(message, whole=args.json))


def _topic(args: argparse.Namespace) -> str:
    if args.topic is None:
        raise CommandError(f"name the topic: wsmux peer {args.action} TOPIC", status=2)
    return check_topic(args.topic)


def _shown(message: TopicMessage, *, whole: bool) -> str:
    """Return a message on one line; bytes that are not JSON in base64."""
    try:
        fields = {"payload": message.payload}
    except BusError:
        fields = {"schema": message.schema, "data": b64encode(message.data).decode()}
    if whole:
        place = {"topic": message.topic, "position": str(message.position)}
        fields = place | {"source": str(message.source), "time": message.time} | fields
        return json.dumps(fields)
    payload = fields.get("payload", fields)
    one_line = isinstance(payload, str) and payload.isprintable()
    return str(payload) if one_line else json.dumps(payload)
