"""Parse and write the JSON that programs on one machine exchange with their gateway.

Programs push requests and responses to lists in Redis, and take incoming ones from lists of their
own. This module handles the text alone, for both sides: a gateway parses what is outgoing and
writes what is incoming, a program the other way round. Absent values are written as ``null``;
unknown ones are ignored.

Stricter than the reference gateway, which only logs malformed messages: an empty command, an empty
list of destinations, or more of them than ``MAX_DESTINATIONS``, are refused, and ``caller_of``
finds the program to inform, if the message names it.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

from ..errors import BadMessage
from ..wire.address import Address, is_text, parse_address

__all__ = [
    "MAX_LIFE",
    "RELAY",
    "IncomingRequest",
    "IncomingResponse",
    "JsonError",
    "OutgoingRequest",
    "OutgoingResponse",
    "caller_of",
    "incoming_request",
    "incoming_response",
    "outgoing_request",
    "outgoing_response",
    "parse_incoming_request",
    "parse_incoming_response",
    "parse_request",
    "parse_response",
]

# Longest life of a request, in seconds; longer ones are cut to it, as by the reference gateway.
MAX_LIFE = 1800

# The list to which programs push responses.
REPLY_LIST = "msgbus.system.reply"

# The source of an error that a relay made.
RELAY = "0"

# Destinations of one request; each gets an envelope of its own.
MAX_DESTINATIONS = 1000

# Bytes of one message: the largest payload in base64, plus the other fields.
MAX_JSON = 24 * 1024 * 1024

_VERSION = 1

_U32, _U64 = 2**32 - 1, 2**64 - 1


class JsonError(NamedTuple):
    """Hold the code and text of an error."""

    code: int
    message: str


class OutgoingRequest(NamedTuple):
    """Hold a request that a program wants sent; times are in seconds.

    ``timestamp`` is when it was made, ``expiration`` its life from then on.
    """

    reference: str | None
    command: str
    expiration: int
    data: bytes
    tags: str | None
    destinations: tuple[int, ...]
    reply_to: str
    schema: str | None
    timestamp: int


class OutgoingResponse(NamedTuple):
    """Hold a program's response; ``reference`` is the ``ref`` of the request that it answers."""

    reference: str | None
    data: bytes
    destination: Address
    schema: str | None
    timestamp: int
    error: JsonError | None


class IncomingRequest(NamedTuple):
    """Hold a request from another twin; times are in seconds, as in ``OutgoingRequest``."""

    reference: str
    source: Address
    command: str
    expiration: int
    data: bytes
    tags: str | None
    reply_to: str
    schema: str | None
    timestamp: int


class IncomingResponse(NamedTuple):
    """Hold the answer to a request.

    ``source`` is ``None`` for an error of a relay, or of the gateway, which has not sent it.
    """

    reference: str | None
    data: bytes
    source: Address | None
    schema: str | None
    error: JsonError | None


def parse_request(text: bytes) -> OutgoingRequest:
    """Parse a message that was pushed to ``msgbus.system.local``.

    Raises:
        BadMessage: it is not a valid request; the message names the field.
    """
    fields = _Fields(_object(text))
    fields.number("ver", _U64)
    request = OutgoingRequest(
        reference=fields.optional_text("ref"),
        command=fields.text("cmd"),
        expiration=min(fields.number("exp", _U64), MAX_LIFE),
        data=fields.data(),
        tags=fields.optional_text("tag"),
        destinations=fields.twins("dst"),
        reply_to=fields.text("ret"),
        schema=fields.optional_text("shm"),
        timestamp=fields.number("now", _U64),
    )
    if not request.command:
        raise BadMessage("'cmd' is empty: name the command to call")
    return request


def parse_response(text: bytes) -> OutgoingResponse:
    """Parse a message that was pushed to ``msgbus.system.reply``.

    Raises:
        BadMessage: it is not a valid response; the message names the field.
    """
    fields = _Fields(_object(text))
    fields.number("ver", _U64)
    return OutgoingResponse(
        reference=fields.optional_text("ref"),
        data=fields.data(),
        destination=fields.address("dst"),
        schema=fields.optional_text("shm"),
        timestamp=fields.number("now", _U64),
        error=fields.error("err"),
    )


def caller_of(text: bytes) -> tuple[str, str | None] | None:
    """Return the ``ret`` and ``ref`` of an invalid request, or ``None`` if they are invalid too."""
    try:
        fields = _Fields(_object(text))
        return fields.text("ret"), fields.optional_text("ref")
    except BadMessage:
        return None


def incoming_request(
    uid: str,
    source: Address,
    command: str,
    expiration: int,
    data: bytes,
    tags: str | None,
    schema: str | None,
    timestamp: int,
) -> bytes:
    """Write a request from another twin, for the list of its command."""
    return _text(
        {
            "ver": _VERSION,
            "ref": uid,
            "src": str(source),
            "cmd": command,
            "exp": expiration,
            "dat": base64.b64encode(data).decode(),
            "tag": tags,
            "ret": REPLY_LIST,
            "shm": schema,
            "now": timestamp,
        }
    )


def incoming_response(
    reference: str | None,
    data: bytes,
    source: str,
    schema: str | None,
    timestamp: int,
    error: JsonError | None = None,
) -> bytes:
    """Write the answer to a request, for the list that its ``ret`` named.

    ``source`` is empty, and ``timestamp`` 0, if the gateway itself could not deliver the request.
    """
    return _text(
        {
            "ver": _VERSION,
            "ref": reference,
            "dat": base64.b64encode(data).decode(),
            "src": source,
            "shm": schema,
            "now": timestamp,
            "err": None if error is None else error._asdict(),
        }
    )


def outgoing_request(request: OutgoingRequest) -> bytes:
    """Write a request, for ``msgbus.system.local``."""
    return _text(
        {
            "ver": _VERSION,
            "ref": request.reference,
            "cmd": request.command,
            "exp": request.expiration,
            "dat": base64.b64encode(request.data).decode(),
            "tag": request.tags,
            "dst": list(request.destinations),
            "ret": request.reply_to,
            "shm": request.schema,
            "now": request.timestamp,
        }
    )


def outgoing_response(response: OutgoingResponse) -> bytes:
    """Write the response of a service, for the list that the request's ``ret`` named."""
    error = response.error
    return _text(
        {
            "ver": _VERSION,
            "ref": response.reference,
            "dat": base64.b64encode(response.data).decode(),
            "dst": str(response.destination),
            "shm": response.schema,
            "now": response.timestamp,
            "err": None if error is None else error._asdict(),
        }
    )


def parse_incoming_request(text: bytes) -> IncomingRequest:
    """Parse a message that a gateway pushed to the list of a command.

    Raises:
        BadMessage: it is not a valid request; the message names the field.
    """
    fields = _Fields(_object(text))
    return IncomingRequest(
        reference=fields.text("ref"),
        source=fields.address("src"),
        command=fields.text("cmd"),
        expiration=fields.number("exp", _U64),
        data=fields.data(),
        tags=fields.optional_text("tag"),
        reply_to=fields.text("ret"),
        schema=fields.optional_text("shm"),
        timestamp=fields.number("now", _U64),
    )


def parse_incoming_response(text: bytes) -> IncomingResponse:
    """Parse a message that a gateway pushed to the list that a request's ``ret`` named.

    Raises:
        BadMessage: it is not a valid response; the message names the field.
    """
    fields = _Fields(_object(text))
    return IncomingResponse(
        reference=fields.optional_text("ref"),
        data=fields.data(),
        source=None if fields.text("src") in ("", RELAY) else fields.address("src"),
        schema=fields.optional_text("shm"),
        error=fields.error("err"),
    )


def _text(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _object(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_JSON:
        raise BadMessage(f"a message of {len(text)} bytes is above the limit of {MAX_JSON}")
    try:
        value = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the message is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadMessage("the message is not a JSON object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadMessage("a field occurs twice")
    return fields


def _no_number(text: str) -> Any:
    raise BadMessage(f"{text} is not JSON")


class _Fields:
    """Read the fields of a JSON object, checking their types."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def _required(self, name: str) -> Any:
        value = self._fields.get(name)
        if value is None:
            raise BadMessage(f"{name!r} is missing")
        return value

    def text(self, name: str) -> str:
        value = self._required(name)
        if not isinstance(value, str):
            raise BadMessage(f"{name!r} is not a string")
        if not is_text(value):
            raise BadMessage(f"{name!r} holds a lone surrogate")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._fields.get(name) is None else self.text(name)

    def number(self, name: str, most: int) -> int:
        return _number(name, self._required(name), most)

    def data(self) -> bytes:
        try:
            return base64.b64decode(self.text("dat"), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadMessage(f"'dat' is not standard base64: {error}") from error

    def twins(self, name: str) -> tuple[int, ...]:
        value = self._required(name)
        if not isinstance(value, list) or not value:
            raise BadMessage(f"{name!r} must list the ids of the twins to ask")
        if len(value) > MAX_DESTINATIONS:
            raise BadMessage(f"{name!r} lists {len(value)} twins; the limit is {MAX_DESTINATIONS}")
        return tuple(_number(name, item, _U32) for item in value)

    def address(self, name: str) -> Address:
        try:
            address = parse_address(self.text(name))
        except ValueError as error:
            raise BadMessage(f"{name!r}: {error}") from error
        if not address.twin:
            raise BadMessage(f"{name!r} names twin 0, which does not exist")
        return address

    def error(self, name: str) -> JsonError | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise BadMessage(f"{name!r} is not an object")
        inner = _Fields(value)
        return JsonError(inner.number("code", _U32), inner.text("message"))


def _number(name: str, value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise BadMessage(f"{name!r} must hold whole numbers from 0 to {most}")
    return value
