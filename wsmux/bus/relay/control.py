"""Answer what twins ask the relay itself.

A twin sends a request to twin 0 whose command begins with ``relay.`` and whose payload is a JSON
object, and gets a response or an error without a source, with the uid of the request, over the same
connection. A relay that knows nothing of this answers with ``MISSING_DESTINATION``, as to any other
message for twin 0. The token of the connection has proved who asks, so the signature is not checked
here, as that of no other envelope from a connection is.

Threads: a handler runs in the thread of the connection that asks. It may block for a bounded time,
in which that connection is not read. ``add`` and ``on_leave`` are called before the relay serves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ...config import KIB
from ...runtime.logs import logger
from ..errors import BAD_INPUT, FAILED, UNAVAILABLE, UNKNOWN_COMMAND, BusError, one_line
from ..wire.envelope import relay_error, relay_response
from ..wire.messages import Envelope
from .sessions import Session

__all__ = ["LATER", "MAX_PAYLOAD", "MAX_REST", "Asked", "Control", "Fields", "Refusal"]

# Maximum bytes of a payload, unless a command has its own, and of the envelope beside it.
MAX_PAYLOAD, MAX_REST = 16 * KIB, 4 * KIB

_log = logger("wsmux.bus")


class Refusal(Exception):
    """Carry the code and the text with which a request is refused."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Fields:
    """Read the fields of a payload; any sender may have written it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def text(self, name: str, pattern: re.Pattern[str], expected: str) -> str:
        """Return a text that a pattern matches in full.

        Args:
            name: the name of the field.
            pattern: what it must match; bounds its length, too.
            expected: describes the pattern, for the error.

        Raises:
            Refusal: it is missing or does not match.
        """
        value = self._values.get(name)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise Refusal(BAD_INPUT, f"expected {name} as {expected}, got {_shown(value)}")
        return value

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """Return a whole number; without a default, it is required.

        Raises:
            Refusal: it is missing, no whole number, or out of bounds.
        """
        value = self._values.get(name, default)
        if type(value) is not int or not least <= value <= most:
            text = f"expected {name} as a number from {least} to {most}, got {_shown(value)}"
            raise Refusal(BAD_INPUT, text)
        return value


class Asked(NamedTuple):
    """Describe a request to the relay.

    Attributes:
        session: the session that asks.
        fields: its payload.
        envelope: the envelope that it came in.
    """

    session: Session
    fields: Fields
    envelope: Envelope


# Returned by a handler that answers later, or never.
LATER = object()

# Returns what is answered, as JSON, or ``LATER``; raises ``Refusal``, or ``BusError`` for what may
# work later.
Handler = Callable[[Asked], Any]


class _Command(NamedTuple):
    handler: Handler
    max_payload: int


class Control:
    """Dispatch requests to the relay; see the module."""

    def __init__(self) -> None:
        self._commands: dict[str, _Command] = {}
        self._leave: list[Callable[[Session], None]] = []

    def add(self, command: str, handler: Handler, max_payload: int = MAX_PAYLOAD) -> None:
        """Answer a command, whose payload has at most ``max_payload`` bytes."""
        self._commands[command] = _Command(handler, max_payload)

    def on_leave(self, callback: Callable[[Session], None]) -> None:
        """Call this for each session whose connection has ended, in the thread of that one.

        By then the session is no longer in the table of sessions; it is called even if another
        connection has taken the session over.
        """
        self._leave.append(callback)

    def left(self, session: Session) -> None:
        """Notify the listeners that the connection of a session has ended."""
        for callback in self._leave:
            try:
                callback(session)
            except Exception:  # the others must know of it, too
                _log.exception("the end of %s was not noted", session.address.shown())

    def answer(self, session: Session, envelope: Envelope, now: int) -> Envelope | None:
        """Run a request, and return the answer, if there is one now; blocks as its handler does."""
        try:
            answer = self._run(session, envelope)
            if answer is LATER:
                return None
            data = json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode()
            return relay_response(envelope, session.address, data, now)
        except Refusal as refusal:
            code, text = refusal.code, refusal.text
        except BusError as error:
            code, text = UNAVAILABLE, error.message
        except Exception:
            _log.exception("%.80r of %s failed", envelope.request.command, session.address.shown())
            code, text = FAILED, "the relay failed; its log says why"
        return relay_error(envelope, text, now, code=code, to=session.address)

    def _run(self, session: Session, envelope: Envelope) -> Any:
        known = self._commands.get(envelope.request.command)
        if known is None:
            text = f"this relay knows no {one_line(envelope.request.command[:80])!r}"
            raise Refusal(UNKNOWN_COMMAND, text)
        data = envelope.plain
        if len(data) > known.max_payload:
            text = f"a payload has at most {known.max_payload} bytes, not {len(data)}"
            raise Refusal(BAD_INPUT, text)
        rest = envelope.ByteSize() - len(data)
        if rest > MAX_REST:  # such as tags, or fields that nobody knows
            text = f"an envelope has at most {MAX_REST} bytes beside its payload, not {rest}"
            raise Refusal(BAD_INPUT, text)
        try:
            values = json.loads(data.decode())
        except (ValueError, RecursionError) as error:
            raise Refusal(BAD_INPUT, "the payload is not JSON") from error
        if not isinstance(values, dict):
            raise Refusal(BAD_INPUT, "the payload is no JSON object")
        return known.handler(Asked(session, Fields(values), envelope))


def _shown(value: object) -> str:
    return f"{str(value)[:80]!r}" if isinstance(value, str) else f"a {type(value).__name__}"
