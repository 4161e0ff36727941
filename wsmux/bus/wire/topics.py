"""Write and read what twins and relays say about topics. Pure.

A topic is a log of messages at a relay. Its messages are numbered from 1 without holes, and a log
that was lost and begun again has another *epoch*; both make a position. The retention of a log
drops its oldest messages only, so a batch needs one number for all its messages, and a reader can
count what it missed.

Three commands go to the relay itself, see ``relay.control``; their payloads are JSON objects:

- ``PUBLISH``: the envelope is what is kept, and what subscribers get. Its payload has the topic,
  the uid, the time, the media type, the data in base64, and a signature.
- ``READ`` asks for what comes after a position, and may wait for it. The answer is a line of JSON,
  with the sizes of the envelopes that follow it.
- ``STOP`` withdraws a read that waits.

A relay can leave out, reorder or repeat messages, but not make or change one: subscribers check the
publisher's signature. That in the payload counts, over a statement that has a mark between its
parts, and looks like nothing else that a twin signs. The signature of the envelope is not checked:
its digest has no marks, and a twin signs texts in answers and errors that others have chosen, which
can be cut anew into a publication. Relays know from its connection who publishes.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeGuard

from ...config import MIB
from ...exceptions import Side
from ..errors import BAD_SIGNATURE, FAILED, UNKNOWN_TWIN, BusError
from ..twins.records import Twin
from .address import Address, address_of
from .envelope import JSON_SCHEMA, Kind, kind_of
from .keys import verify
from .messages import Envelope
from .names import EXPECTED, is_name

__all__ = [
    "MAX_ANSWER",
    "MAX_CREDIT",
    "MAX_DATA",
    "MAX_PUBLISH",
    "MAX_SCHEMA",
    "MAX_WAIT",
    "NEW",
    "OLDEST",
    "PUBLISH",
    "READ",
    "READER",
    "PLACE",
    "START",
    "STOP",
    "Batch",
    "MessageRefused",
    "Position",
    "Publication",
    "TopicGap",
    "check_topic",
    "gap",
    "parse_position",
    "publish_answer",
    "publish_body",
    "read_answer",
    "read_answer_body",
    "read_body",
    "verified_publication",
]

# Commands to a relay.
PUBLISH, READ, STOP = "relay.topic.publish", "relay.topic.read", "relay.topic.stop"

# Places in a log that have no position yet: behind its newest message, before its oldest.
NEW, OLDEST = "new", "oldest"

# Bytes of a message's data, and of its media type.
MAX_DATA, MAX_SCHEMA = MIB, 128

# Bytes of the payload that carries them.
MAX_PUBLISH = 4 * (MAX_DATA // 3 + 1) + 2048

# Messages, and bytes of envelopes, in one answer; a single envelope may be larger.
MAX_CREDIT, MAX_ANSWER = 1000, MIB

# Bytes of a line before data: room for the sizes of MAX_CREDIT envelopes.
MAX_LINE = 16 * 1024

# Milliseconds for which a read may wait at a relay.
MAX_WAIT = 300_000

# What names a place in a topic, and a subscription within its session.
READER = re.compile(r"[0-9a-f]{16}")
_POSITION = re.compile(r"(0|[1-9][0-9]{0,14})-(0|[1-9][0-9]{0,14})")
PLACE = re.compile(f"{NEW}|{OLDEST}|{_POSITION.pattern}")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Position(NamedTuple):
    """Name a place in a topic: that of one message, which comes before all later ones.

    Compare positions of one topic, keep them as ``str(position)``, and give them to ``subscribe``;
    do not compute with them.

    Attributes:
        epoch: tells one log from another that was begun under the same name.
        number: that of the message, from 1 without holes.
    """

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.number}"


# Before the first message, also of a topic that nobody has published to.
START = Position(0, 0)


class Batch(NamedTuple):
    """Hold messages that follow each other.

    Attributes:
        epoch: that of the log.
        first: the number of the first message, or of the next one if there are none.
        envelopes: the messages.
    """

    epoch: int
    first: int
    envelopes: Sequence[bytes]

    def end(self) -> Position:
        """Return the position behind these messages."""
        return Position(self.epoch, self.first + len(self.envelopes) - 1)


class TopicGap(BusError):
    """Report messages of a topic that a subscription will not get: its log has dropped them.

    Reading goes on behind them. The text says what keeps more of them.

    Attributes:
        topic: the topic.
        after: the position of the last message before the gap.
        before: the position of the first message behind it.
        count: how many are missing; ``None`` if another log has begun under the name, as when a
            relay without Redis was restarted. Then there may be none.
    """

    def __init__(self, topic: str, after: Position, before: Position, count: int | None) -> None:
        if count is None:
            what = f"the log of {topic!r} was begun again, and what it had after {after} is lost"
            fix = "give its relays one Redis, which keeps it"
        else:
            what = f"{count} messages of {topic!r} after {after} were dropped before they were read"
            fix = "read faster, or have the relay keep more (--topic-retention)"
        super().__init__(FAILED, f"{what}: {fix}", retry_safe=True)
        self.topic = topic
        self.after = after
        self.before = before
        self.count = count


class MessageRefused(BusError):
    """Report a message of a topic that is not what its publisher signed; reading goes on behind it.

    Attributes:
        topic: the topic.
        position: the position that the relay gave it.
    """

    def __init__(self, topic: str, position: Position, cause: BusError) -> None:
        text = f"message {position} of {topic!r} is refused: {cause.message}"
        super().__init__(cause.code, text, twin=cause.twin, retry_safe=True)
        self.side: Side | None = "remote"
        self.topic = topic
        self.position = position


class Publication(NamedTuple):
    """Hold what a publisher signs for a topic.

    Attributes:
        source: the publisher.
        uid: its own id of the message.
        time: when it was published, in Unix seconds by the publisher's clock.
        schema: the media type of the data.
        data: the data.
    """

    source: Address
    uid: str
    time: int
    schema: str
    data: bytes


def check_topic(name: object) -> str:
    """Return the name of a topic.

    Raises:
        ValueError: it is none, by the rule for the names of services.
    """
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(f"expected the name of a topic, {EXPECTED}, got {str(name)[:80]!r}")
    return name


def parse_position(text: str) -> Position:
    """Return the position that ``str`` wrote.

    Raises:
        ValueError: it is malformed.
    """
    match = _POSITION.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a position as a message gave it, got {text[:80]!r}")
    return Position(int(match[1]), int(match[2]))


def gap(topic: str, after: Position, batch: Batch) -> TopicGap | None:
    """Return what is missing between a position and the batch that was read behind it."""
    before = Position(batch.epoch, batch.first)
    if after.epoch != batch.epoch and after != START:
        return TopicGap(topic, after, before, None)
    count = batch.first - after.number - 1
    return TopicGap(topic, after, before, count) if count > 0 else None


def publish_body(topic: str, content: Publication, sign: Callable[[bytes], bytes]) -> bytes:
    """Return the payload of a publication; ``sign`` signs for its source.

    Raises:
        ValueError: an argument is invalid or too long.
    """
    uid, data, schema = content.uid, content.data, content.schema
    if len(data) > MAX_DATA:
        text = f"a message of {len(data)} bytes is above the limit of {MAX_DATA}"
        raise ValueError(f"{text}: publish where it is kept instead")
    fields = {"topic": check_topic(topic), "uid": _uid(uid), "schema": _schema(schema)}
    signature = sign(_statement(topic, content))
    more = {"data": b64encode(data).decode(), "signature": b64encode(signature).decode()}
    return _json(fields | {"time": content.time} | more)


def verified_publication(
    envelope: Envelope, find: Callable[[int], Twin | None], topic: str | None = None
) -> tuple[str, Publication]:
    """Return the topic and the content of what a twin published; blocks only for ``find``.

    Args:
        envelope: what came from the publisher, or as its message from a relay.
        find: returns a twin, or ``None`` if there is none, or raises ``BusError``.
        topic: the topic that it must be for; any if omitted.

    Raises:
        BusError: code 500, it is no message, or one of another topic; 103, its publisher is
            unknown; 104, the publisher has not signed it.
    """
    named, content, signature = _publication(envelope, topic)
    number = content.source.twin
    twin = find(number)
    if twin is None:
        raise BusError(UNKNOWN_TWIN, f"unknown twin id '{number}'", twin=number)
    if not verify(twin.account, _statement(named, content), signature):
        text = f"a message of {named!r} is not signed by twin {number}: it is refused"
        raise BusError(BAD_SIGNATURE, text, twin=number)
    return named, content


def publish_answer(payload: bytes) -> Position:
    """Return the position in the answer to a publication.

    Raises:
        ValueError: it is malformed.
    """
    return parse_position(str(_object(payload).get("position")))


def read_body(topic: str, reader: str, after: Position | str, credit: int, wait: float) -> bytes:
    """Return the payload of a read.

    Args:
        topic: the topic.
        reader: the name of the subscription, unique within its session: a later read with the same
            name replaces the earlier one.
        after: the position behind which to read, or ``NEW`` or ``OLDEST``.
        credit: messages at most; 0 asks where reading would begin, and is answered at once.
        wait: seconds to wait for a message.
    """
    fields = {"topic": topic, "reader": reader, "after": str(after), "credit": credit}
    return _json(fields | {"wait": int(1000 * wait)})


def read_answer_body(batch: Batch) -> bytes:
    """Return the payload of the answer to a read."""
    sizes = [len(each) for each in batch.envelopes]
    line = _json({"epoch": batch.epoch, "first": batch.first, "sizes": sizes})
    return b"".join([line, b"\n", *batch.envelopes])


def read_answer(payload: bytes) -> Batch:
    """Return the batch of an answer.

    Raises:
        ValueError: it is malformed.
    """
    end = payload.find(b"\n", 0, MAX_LINE)
    if end < 0:
        raise ValueError("the answer to a read does not begin with a line of JSON")
    line, rest = _object(payload[:end]), payload[end + 1 :]
    epoch, first, sizes = line.get("epoch"), line.get("first"), line.get("sizes")
    if not _is_number(epoch) or not _is_number(first) or epoch < 0 or first < 1:
        raise ValueError("the answer to a read names no epoch and first number")
    if not isinstance(sizes, list) or not all(_is_number(each) and each >= 0 for each in sizes):
        raise ValueError("the answer to a read names no sizes")
    if sum(sizes) != len(rest):
        raise ValueError(f"the answer to a read has {len(rest)} bytes, not {sum(sizes)}")
    envelopes, start = [], 0
    for size in sizes:
        envelopes.append(rest[start : start + size])
        start += size
    return Batch(epoch, first, envelopes)


def _statement(topic: str, content: Publication) -> bytes:
    """Return what is signed. No envelope or token looks like it."""
    source, uid, at, schema, data = content
    parts = ["wsmux topic", topic, uid, *source, at, schema, sha256(data).hexdigest()]
    return _json(parts)


def _publication(envelope: Envelope, topic: str | None) -> tuple[str, Publication, bytes]:
    """Return what is published and its signature, without checking that."""
    try:
        _check_form(envelope)
        fields = _object(envelope.plain)
        named, schema = check_topic(fields.get("topic")), _schema(fields.get("schema"))
        if _uid(fields.get("uid")) != envelope.uid:
            raise ValueError("its payload repeats another uid")
        if topic not in (None, named):
            raise ValueError(f"it is for {named!r}, not {topic!r}")
        at = fields.get("time")
        if not _is_number(at):
            raise ValueError("it has no time")
        data, signature = _bytes(fields, "data"), _bytes(fields, "signature")
        if len(data) > MAX_DATA:
            raise ValueError(f"its {len(data)} bytes of data are above the limit of {MAX_DATA}")
    except ValueError as error:
        twin = envelope.source.twin or None
        raise BusError(FAILED, f"not a message of a topic: {error}", twin=twin) from error
    source = address_of(envelope.source)
    assert source is not None  # checked as part of its form
    return named, Publication(source, envelope.uid, at, schema, data), signature


def _check_form(envelope: Envelope) -> None:
    """Hold a publication to the one form that it may have."""
    if kind_of(envelope) is not Kind.REQUEST or envelope.request.command != PUBLISH:
        raise ValueError(f"its command is not {PUBLISH}")
    to = envelope.destination
    if to.twin or to.connection or not envelope.source.twin:
        raise ValueError("it is not from a twin to a relay")
    others = (envelope.tags, envelope.federation, "".join(envelope.relays), envelope.cipher)
    if any(others) or envelope.schema != JSON_SCHEMA:
        raise ValueError("it has tags, a schema or a ciphertext that publications do not have")


def _json(value: dict[str, Any] | list[Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _object(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    return fields


def _bytes(fields: dict[str, Any], name: str) -> bytes:
    encoded = fields.get(name)
    if not isinstance(encoded, str):
        raise ValueError(f"it has no {name}")
    return b64decode(encoded, validate=True)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _schema(schema: object) -> str:
    if not isinstance(schema, str) or not 0 < len(schema) <= MAX_SCHEMA:
        raise ValueError(f"expected a media type of up to {MAX_SCHEMA} characters, got {schema!r}")
    return schema


def _uid(uid: object) -> str:
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise ValueError("its uid is not a UUID in lower case")
    return uid
