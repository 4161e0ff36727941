"""Build and validate the payloads of handshakes (specification, "Handshake").

A connection begins with ``HANDSHAKE_REQ`` from the client and ``HANDSHAKE_RESP`` from the server.
Both have the number 0 and are not counted. Later a server may ask for new metadata with
``REHANDSHAKE_REQ``, which the client answers with ``REHANDSHAKE_RESP``; these are counted messages
on a stream of their own. They are not in the specification, but follow other implementations.

``isReconnect``, beside the counters, is not in the specification either. A session without any
acknowledged message has the counters of a new one, so a restarted server would accept it as new and
run retransmitted calls again. A client sets the field once its session has had a connection; peers
that do not support it ignore it.

``attempt``, beside it, is ours too: ``{"instance", "number", "welcomed"}``. A handshake can be
delayed, in the queue of a proxy or of a listener, until its client has given it up and has another
connection. A server must neither take the late handshake for the newest one, nor a session that it
began for the session that the client was welcomed to. Session ids cannot tell them apart: with a
new one for each attempt, servers that do not support ``attempt`` would destroy a connected session
over a late handshake, which they resume or refuse if it has the same id. ``instance`` is random and
told to servers only, like a session id.

Only version "v2.0" is supported. The specification lists older versions, and other servers accept
"v1.1" too, in which flag 4 has another meaning. The version is checked before the fields that
depend on it, so that an old client is told the cause. ``metadata`` is optional and then ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from ...exceptions import RemoteProtocolError
from .envelope import MAX_COUNTER, MAX_ID, Envelope

__all__ = [
    "REHANDSHAKE_STREAM",
    "RETRIABLE_CODES",
    "VERSION",
    "Attempt",
    "ExpectedState",
    "HandshakeRequest",
    "MalformedHandshake",
    "Refusal",
    "RefusalCode",
    "handshake_envelope",
    "parse_rehandshake_request",
    "parse_rehandshake_response",
    "parse_request",
    "parse_response",
    "refusal_payload",
    "rehandshake_request_payload",
    "rehandshake_response_payload",
    "request_payload",
    "welcome_payload",
]

VERSION = "v2.0"

REHANDSHAKE_STREAM = "rehandshake"


class RefusalCode(StrEnum):
    """The codes of a server's refusal; the third is not in the specification."""

    SESSION_STATE_MISMATCH = "SESSION_STATE_MISMATCH"
    REJECTED_BY_CUSTOM_HANDLER = "REJECTED_BY_CUSTOM_HANDLER"
    REJECTED_UNSUPPORTED_CLIENT = "REJECTED_UNSUPPORTED_CLIENT"
    MALFORMED_HANDSHAKE_META = "MALFORMED_HANDSHAKE_META"
    MALFORMED_HANDSHAKE = "MALFORMED_HANDSHAKE"
    PROTOCOL_VERSION_MISMATCH = "PROTOCOL_VERSION_MISMATCH"


# After these a client retries with a new session; after all others it gives up.
RETRIABLE_CODES = frozenset({RefusalCode.SESSION_STATE_MISMATCH})


class MalformedHandshake(RemoteProtocolError):
    """Report an invalid handshake; ``refusal`` is the code of the server's answer."""

    def __init__(
        self, message: str, refusal: RefusalCode = RefusalCode.MALFORMED_HANDSHAKE
    ) -> None:
        super().__init__(message)
        self.refusal = refusal


class ExpectedState(NamedTuple):
    """The counters of a client's session, from which a server decides whether to resume it."""

    next_expected: int  # number of the message that it expects next
    next_sent: int  # number of the first message that it will send or send again


class Attempt(NamedTuple):
    """Say which of a client's handshakes one is; a later one has a larger number."""

    instance: str  # of the client: a random text, new for each object and each process
    number: int  # from 1 up, over all sessions of the instance
    welcomed: int = 0  # number of the attempt in which the session was first welcomed; 0 before


class HandshakeRequest(NamedTuple):
    """A client's request; ``metadata`` is not validated yet.

    ``is_reconnect`` is set by a client whose session has had a connection before. Other
    implementations neither set it nor send ``attempt``.
    """

    session_id: str
    expected: ExpectedState
    metadata: Any = None
    is_reconnect: bool = False
    attempt: Attempt | None = None


class Refusal(NamedTuple):
    """A server's refusal; ``code`` may be unknown to this version."""

    code: str
    reason: str

    @property
    def retriable(self) -> bool:
        """Return whether the client should retry with a new session."""
        return self.code in RETRIABLE_CODES


def handshake_envelope(own_id: str, peer_id: str, message_id: str, stream_id: str) -> Envelope:
    """Return the envelope of a handshake; its number and flags are 0."""
    return Envelope(message_id, own_id, peer_id, 0, 0, stream_id, 0, None)


def request_payload(
    session_id: str,
    expected: ExpectedState,
    metadata: Any,
    *,
    is_reconnect: bool = False,
    attempt: Attempt | None = None,
) -> dict[str, Any]:
    """Return the payload of a client's request; what is ``None`` is left out."""
    state: dict[str, Any] = {
        "nextExpectedSeq": expected.next_expected,
        "nextSentSeq": expected.next_sent,
    }
    if is_reconnect:
        state["isReconnect"] = True
    if attempt is not None:
        state["attempt"] = attempt._asdict()
    payload = {
        "type": "HANDSHAKE_REQ",
        "protocolVersion": VERSION,
        "sessionId": session_id,
        "expectedSessionState": state,
    }
    return payload if metadata is None else {**payload, "metadata": metadata}


def parse_request(payload: Any) -> HandshakeRequest:
    """Parse a client's request.

    Raises:
        MalformedHandshake: the payload is not a request, or not of version 2.0.
    """
    fields = _control(payload, "HANDSHAKE_REQ")
    version = _text(fields, "protocolVersion")
    if version != VERSION:
        raise MalformedHandshake(
            f"expected protocol version {VERSION}, got {version}",
            RefusalCode.PROTOCOL_VERSION_MISMATCH,
        )
    state = _object(fields, "expectedSessionState")
    expected = ExpectedState(_count(state, "nextExpectedSeq"), _count(state, "nextSentSeq"))
    is_reconnect = state.get("isReconnect", False)
    if not isinstance(is_reconnect, bool):
        raise MalformedHandshake("isReconnect of a handshake must be true or false")
    attempt = _attempt(state) if "attempt" in state else None
    session_id = _text(fields, "sessionId")
    return HandshakeRequest(session_id, expected, fields.get("metadata"), is_reconnect, attempt)


def _attempt(state: Mapping[str, Any]) -> Attempt:
    fields = _object(state, "attempt")
    instance = _text(fields, "instance")
    if len(instance) > MAX_ID:
        raise MalformedHandshake("the instance of a client is too long")
    return Attempt(instance, _count(fields, "number"), _count(fields, "welcomed"))


def welcome_payload(session_id: str) -> dict[str, Any]:
    """Return the payload that accepts a connection for a session."""
    return {"type": "HANDSHAKE_RESP", "status": {"ok": True, "sessionId": session_id}}


def refusal_payload(code: str, reason: str) -> dict[str, Any]:
    """Return the payload that refuses a connection, which is then closed."""
    return {"type": "HANDSHAKE_RESP", "status": {"ok": False, "code": code, "reason": reason}}


def parse_response(payload: Any) -> str | Refusal:
    """Return the session id that a server accepts, or its refusal.

    An unknown code is not an error: it counts as fatal.

    Raises:
        MalformedHandshake: the payload is not a response.
    """
    status = _object(_control(payload, "HANDSHAKE_RESP"), "status")
    if status.get("ok") is True:
        return _text(status, "sessionId")
    if status.get("ok") is False:
        return Refusal(_text(status, "code"), _text(status, "reason"))
    raise MalformedHandshake("ok of a handshake must be true or false")


def rehandshake_request_payload() -> dict[str, Any]:
    """Return the payload that asks for new metadata."""
    return {"type": "REHANDSHAKE_REQ"}


def parse_rehandshake_request(payload: Any) -> None:
    """Check that a server asks for new metadata.

    Raises:
        MalformedHandshake: it does not. Clients of other implementations ignore that.
    """
    _control(payload, "REHANDSHAKE_REQ")


def rehandshake_response_payload(metadata: Any) -> dict[str, Any]:
    """Return the payload of new metadata, which is left out if ``None``."""
    payload = {"type": "REHANDSHAKE_RESP"}
    return payload if metadata is None else {**payload, "metadata": metadata}


def parse_rehandshake_response(payload: Any) -> Any:
    """Return the new metadata of a client, not validated yet.

    Raises:
        MalformedHandshake: the payload is not a response. Servers of other implementations end the
            session then.
    """
    return _control(payload, "REHANDSHAKE_RESP").get("metadata")


def _control(payload: Any, kind: str) -> Mapping[str, Any]:
    if not isinstance(payload, Mapping) or payload.get("type") != kind:
        raise MalformedHandshake(f"expected a payload of type {kind}")
    return payload


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if not isinstance(value, Mapping):
        raise MalformedHandshake(f"{name} of a handshake must be an object")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise MalformedHandshake(f"{name} of a handshake must be a string")
    return value


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JavaScript has no other numbers
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNTER:
        raise MalformedHandshake(f"{name} of a handshake must be a whole number from 0 to 2^53-1")
    return value
