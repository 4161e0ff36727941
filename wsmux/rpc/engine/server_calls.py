"""A server's side of calls: what a handler is given, and when a call is over.

A call has two halves. The client ends the requests; the handler ends the responses, at the latest
by returning, which in shipped servers ends nothing. The call is over when both have ended, or when
either side cancels. Then ``ctx.ended`` is set at once, and what was deferred runs, last in first
out, in a thread that waits for no handler: handlers wait for it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Parker
from ..errors import CANCEL, RiverError
from ..services import Procedure
from ..session.session import Session
from .call_streams import CallBase

__all__ = ["Context", "Replies", "ServerCall"]

_log = logger("wsmux.rpc")


class Replies(ABC):
    """What calls need of their server."""

    @abstractmethod
    def send_response(self, call: ServerCall, value: Any, deadline: Deadline) -> None:
        """Send one response, waiting while too much is not acknowledged."""

    @abstractmethod
    def close_responses(self, call: ServerCall) -> None:
        """Send the end of the responses, once."""

    @abstractmethod
    def cancel(self, call: ServerCall, error: RiverError) -> None:
        """Cancel a call at the client, and end it here with the same error; once."""

    @abstractmethod
    def metadata(self, call: ServerCall) -> Any:
        """Return the validated metadata of the session, which may have been refreshed."""


class ServerCall(CallBase):
    """One call. What is not constant is guarded by the mutex."""

    def __init__(
        self,
        server: Replies,
        mutex: threading.Lock,
        session: Session,
        stream_id: str,
        procedure: Procedure,
    ) -> None:
        super().__init__(mutex)
        self._server = server
        self.session = session
        self.stream_id = stream_id
        self.procedure = procedure
        self.first_metadata: Any = None
        # Few handlers ask for an event, which costs as much as the rest of a small call.
        self._ended: threading.Event | None = None
        self._deferred: list[Callable[[], object]] = []
        self._cleaned = False  # what was deferred has run
        self.answered = False  # its handler has returned, or has said the last that it says
        self.orphan = False  # cancelled while that was not so

    @property
    def name(self) -> str:
        """Name it in a sentence."""
        return f"{self.procedure.service}.{self.procedure.name}"

    @property
    def ended(self) -> threading.Event:
        """An event that is set when the call is over."""
        with self.mutex:
            if self._ended is None:
                self._ended = threading.Event()
                if self.over:
                    self._ended.set()
            return self._ended

    def send(self, value: Any, deadline: Deadline) -> None:
        self._server.send_response(self, value, deadline)

    def close_writing(self) -> None:
        self._server.close_responses(self)

    def cancel(self, error: RiverError) -> None:
        """Cancel the call."""
        if not self.in_child():
            self._server.cancel(self, error)

    def live_metadata(self) -> Any:
        """Return the session's metadata."""
        return self._server.metadata(self)

    def end_locked(self, error: RiverError | None, wakes: list[Parker]) -> None:
        super().end_locked(error, wakes)
        if self._ended is not None:
            self._ended.set()

    def completed_locked(self) -> bool:
        completed = super().completed_locked()
        if completed and self._ended is not None:
            self._ended.set()
        return completed

    def defer(self, action: Callable[[], object]) -> None:
        """Run an action when the call is over; at once if all the others have run."""
        self.check_process()
        with self.mutex:
            late = self._cleaned
            if not late:
                self._deferred.append(action)
        if late:
            self._do(action)

    def defers(self) -> bool:
        """Return whether there is anything for ``clean_up``, now that the call is over."""
        with self.mutex:
            self._cleaned = not self._deferred
            return not self._cleaned

    def clean_up(self) -> None:
        """Run what was deferred, and what that defers; in a thread that may block."""
        while True:
            with self.mutex:
                if not self._deferred:
                    self._cleaned = True
                    return
                action = self._deferred.pop()
            self._do(action)

    def _do(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            _log.exception("what %s deferred failed", self.name)


class Context:
    """What a handler is told beside its init.

    Attributes:
        state: that of its service.
        context: what the server was given for all handlers.
        client_id, session_id, stream_id: who calls, and how the call is named on the wire.
        service, procedure: what is called.
    """

    def __init__(self, call: ServerCall, state: Any, context: Any) -> None:
        self._call = call
        self.state = state
        self.context = context
        self.client_id = call.session.peer_id
        self.session_id = call.session.id
        self.stream_id = call.stream_id
        self.service = call.procedure.service
        self.procedure = call.procedure.name

    @property
    def ended(self) -> threading.Event:
        """An event that is set when the call is over, whatever ended it."""
        return self._call.ended

    @property
    def metadata(self) -> Any:
        """What the validation of the client's handshake returned, refreshed while it lives.

        What it was when the call began, once the session is over.
        """
        return self._call.live_metadata()

    def cancel(self, message: str = "cancelled by the server") -> None:
        """End the call for both sides: reads and writes raise CANCEL. Further calls do nothing."""
        self._call.cancel(RiverError(CANCEL, message))

    def defer(self, action: Callable[[], object]) -> None:
        """Run an action when the call is over, the last one first; at once if it is over.

        Errors of an action are logged and do not stop the others.
        """
        self._call.defer(action)
