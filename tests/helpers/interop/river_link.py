"""Hold a River server of ours, and what the tests do with a client of another make."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from wsmux import rpc
from wsmux.testing import FaultProxy

from ..inside import calls_of, engine_of
from ..rpc.procedures import Gate, offered
from ..waiting import wait_for
from .jsonlines import from_json, to_json
from .link import HOST, WAIT
from .peer_process import PeerProcess

__all__ = ["KINDS", "MUTE", "QUIET", "RiverLink", "river_marks"]

KINDS = ("rpc", "upload", "subscription", "stream")

# No heartbeat, and no loss of a session, comes in between.
QUIET = rpc.Options(heartbeat_interval=600, session_disconnect_grace=600)

# Nor an early ACK, whose answer could be under way when a connection is cut.
MUTE = replace(QUIET, ack_messages=10**6, ack_bytes=2**40)

# The first test of a run may have to install the packages, which counts as its time.
river_marks = [pytest.mark.interop, pytest.mark.hang_bound(400)]

_numbers = itertools.count(1)


def _end(ctx: rpc.Context, how: str) -> None:
    """Do in a handler what its caller asked for."""
    match how:
        case "declared":
            raise rpc.RiverError("BAD", "as declared", {"list": [1, "ü"]})
        case "undeclared":
            raise rpc.RiverError("WORSE", "not declared")
        case "raised":
            raise LookupError("a secret")
        case "cancelled":
            ctx.cancel("enough")
        case _:
            raise AssertionError(how)


def endings() -> rpc.Service:
    """Return the service ``endings``, one procedure for each kind, which end as they are told."""
    service = rpc.Service("endings")
    errors = [rpc.ErrorSchema("BAD", extras={"type": "object"})]

    @service.rpc(errors=errors, name="rpc")
    def answer(ctx: rpc.Context, init: Any) -> None:
        _end(ctx, init["how"])

    @service.upload(errors=errors)
    def upload(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> None:
        requests.read(WAIT)
        _end(ctx, init["how"])

    @service.subscription(errors=errors)
    def subscription(ctx: rpc.Context, init: Any) -> Iterator[str]:
        yield "before"
        _end(ctx, init["how"])

    @service.stream(errors=errors)
    def stream(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Iterator[str]:
        yield requests.read(WAIT)
        _end(ctx, init["how"])

    return service


def holding(gate: Gate) -> rpc.Service:
    """Return the service ``holding``, whose procedures wait for others, or for the gate."""
    service = rpc.Service("holding", state=lambda context: {})

    @service.rpc()
    def meet(ctx: rpc.Context, init: Any) -> int:
        meeting = ctx.state.setdefault("meeting", threading.Barrier(init["parties"]))
        place: int = meeting.wait(WAIT)
        return place

    @service.rpc()
    def metadata(ctx: rpc.Context, init: Any) -> Any:
        return ctx.metadata

    @service.subscription()
    def halves(ctx: rpc.Context, init: Any) -> Iterator[int]:
        yield from range(init["first"])
        gate.entered.set()
        assert gate.opened.wait(WAIT)
        yield from range(init["first"], init["last"])

    @service.upload()
    def gather(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> list[Any]:
        gate.begun.append("gather")
        try:
            for request in requests:
                gate.seen.append(request)
        except rpc.RiverError as error:
            gate.seen.append(error.code)
        return gate.seen

    return service


class RiverLink:
    """Serve procedures, and have a peer that calls them; used as a context manager.

    Attributes:
        leaves_calls: the test does not end all calls that it makes.
    """

    def __init__(
        self, peer: PeerProcess, options: rpc.Options = QUIET, proxied: bool = False, **given: Any
    ) -> None:
        self.peer = peer
        self.gate = Gate()
        self.statuses: list[tuple[str, str]] = []
        self.failures: list[tuple[str, ...]] = []
        self.leaves_calls = False
        self.client_id = f"client-{next(_numbers)}"
        self._stack = ExitStack()
        self.server = self.serve(options, **given)
        port = self.server.port
        if proxied:
            self.proxy = self._stack.enter_context(FaultProxy(port))
            port = self.proxy.port
        self.url = f"ws://{HOST}:{port}"

    def serve(self, options: rpc.Options = QUIET, **given: Any) -> rpc.RpcServer:
        """Return another server; the proxy goes on to the first one."""
        server = rpc.serve(
            [offered(self.gate), endings(), holding(self.gate)],
            options=options,
            on_session_status=lambda *status: self.statuses.append(status),
            on_protocol_error=lambda *failure: self.failures.append(failure),
            **given,
        )
        return self._stack.enter_context(server)

    # What the server holds

    @property
    def sessions(self) -> int:
        """Sessions that the server has."""
        return self.server.handler.sessions

    @property
    def session_ids(self) -> list[str]:
        """The ids of these sessions."""
        return [each.session_id for each in self.server.handler.list_sessions()]

    @property
    def calls(self) -> int:
        """Calls that the server has, of all sessions."""
        return calls_of(self.server.handler)

    @property
    def attached(self) -> bool:
        """Whether the client's session has a connection."""
        session = self._session()
        return session is not None and session.attached

    def facts(self) -> str:
        """Return what a failure needs to be understood: what both ends hold, and what happened."""
        held = self.server.handler.list_sessions()
        sessions = [(each.session_id, each.state, each.connections, each.calls) for each in held]
        proxy = self.proxy
        carried = (proxy.accepted, proxy.refused, proxy.connections, proxy.counters("up"))
        return (
            f"server: {sessions=} {self.statuses=} {self.failures=}; proxy: {carried=}; "
            f"the client's last words: {self.peer.last_words()}"
        )

    def wait_received(self, count: int) -> None:
        """Wait until the server has got so many messages of the client's."""

        def received() -> bool:
            session = self._session()
            return session is not None and session.expected_state().next_expected >= count

        wait_for(received)

    def _session(self) -> Any:
        engine = engine_of(self.server.handler)
        with engine.mutex:
            return engine.sessions.get(self.client_id)

    # What the client does

    def connect(self, **args: Any) -> Any:
        """Connect, and return what the client tells of its session."""
        given = {"url": self.url, "clientId": self.client_id, **args}
        return self.peer.call("connect", **given)

    def open(self, kind: str, name: str, init: Any = None, **args: Any) -> int:
        """Start a call of ``service.procedure``, and return what names it.

        The package cannot send null, so an object stands for no init.
        """
        service, procedure = name.split(".")
        init = to_json({} if init is None else init)
        called = {"kind": kind, "service": service, "procedure": procedure, "init": init}
        number: int = self.peer.call("open", **called, **args)["call"]
        return number

    def give(self, call: int, *requests: Any, over: bool = True, **args: Any) -> None:
        """Give a call requests; unless told otherwise, they are the last."""
        self.peer.call("give", call=call, requests=to_json(list(requests)), over=over, **args)

    def result(self, call: int) -> list[Any]:
        """Return all responses of a call, when it has ended."""
        responses: list[Any] = from_json(self.peer.call("result", WAIT, call=call))
        return responses

    def rpc(self, name: str, init: Any = None, **args: Any) -> Any:
        """Return the response of an rpc."""
        (response,) = self.result(self.open("rpc", name, init, **args))
        return response

    def assert_works(self) -> None:
        """Make a call that is answered."""
        assert self.rpc("test.same", "still there?") == "still there?"

    def __enter__(self) -> RiverLink:
        return self

    def __exit__(self, *error: object) -> None:
        """End everything; calls must have ended before, where the server can know it."""
        with self._stack:
            self.gate.opened.set()
            if error[0] is None and not self.leaves_calls:
                wait_for(lambda: self.calls == 0)
            if self.peer.alive():
                self.peer.call("fresh")
