"""Run a peer on PyPI `replit-river`, its client of protocol v2; see jsonlines.mjs.

A call is a task that gathers responses, and takes what requests it is given meanwhile. Some of what
the package does needs care:

- A close with code 1000 while its session is active lets it spin for ever, and nothing else runs.
  So ``fresh`` leaves the session before the server may close.
- It waits ``shutdown_all_streams_timeout_ms`` seconds for streams that nobody reads.
- After a number of attempts it gives up for good; here there are as many as one wants.

Run by the virtual environment of installs.py; nothing here is imported by the tests.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgpack
import replit_river
from jsonlines import Json, answer, describe, emit, from_json, to_json
from opentelemetry import trace
from replit_river.error_schema import RiverError, RiverException
from replit_river.transport_options import ConnectionRetryOptions, TransportOptions
from replit_river.v2 import session as v2
from replit_river.v2.client import Client

POLL = 0.002
CALL_TIMEOUT = 20.0

RETRIES = ConnectionRetryOptions(
    base_interval_ms=1, max_jitter_ms=0, max_backoff_ms=10, attempt_budget_capacity=10_000
)

OVER = object()


class Told(RiverError):
    """An error as the server told it; the package's own class knows no extras."""

    extras: Any = None


def same(value: Any) -> Any:
    """Every serializer and deserializer."""
    return value


def told(payload: Json) -> Told:
    return Told(**payload)


def plain(value: Any) -> Any:
    """Return a response as it travels to the test."""
    if isinstance(value, Told):
        return {"$error": [value.code, value.message, value.extras]}
    if isinstance(value, msgpack.ExtType):
        return {"$ext": [value.code, value.data.hex()]}
    return to_json(value)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(POLL)


class Call:
    """One call of a procedure."""

    def __init__(self, client: Client[Any], args: Json) -> None:
        self.responses: list[Any] = []
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._client = client
        self._kind = args["kind"]
        self._name = (args["service"], args["procedure"])
        self._init = from_json(args["init"])
        self._timeout = timedelta(seconds=args.get("callTimeout", CALL_TIMEOUT))
        self.task = asyncio.create_task(self._run())

    def give(self, requests: list[Any], over: bool) -> None:
        for request in requests:
            self._requests.put_nowait(request)
        if over:
            self._requests.put_nowait(OVER)

    @property
    def untaken(self) -> int:
        return self._requests.qsize()

    async def _taken(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not OVER:
            yield request

    async def _run(self) -> None:
        client, name, init = self._client, self._name, self._init
        try:
            match self._kind:
                case "rpc":
                    response = await client.send_rpc(*name, init, same, same, told, self._timeout)
                    self.responses.append(plain(response))
                case "upload":
                    response = await client.send_upload(
                        *name, init, self._taken(), same, same, same, told
                    )
                    self.responses.append(plain(response))
                case "subscription":
                    async for each in client.send_subscription(*name, init, same, same, told):
                        self.responses.append(plain(each))
                case "stream":
                    async for each in client.send_stream(
                        *name, init, self._taken(), same, same, same, told
                    ):
                        self.responses.append(plain(each))
                case kind:
                    raise LookupError(f"no kind {kind}")
        except RiverException as error:
            underlying = getattr(error, "underlying_error", None)
            error.extra = {"code": error.code}
            if underlying is not None:
                error.extra |= {"message": underlying.message, "extras": underlying.extras}
            raise

    async def result(self) -> list[Any]:
        """Return all responses, after the end; the error of a call tells them, too."""
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise RuntimeError("the call was cancelled here")
        if (error := self.task.exception()) is not None:
            error.extra = getattr(error, "extra", {}) | {"responses": self.responses}
            raise error
        return self.responses


class Peer:
    """Answer commands."""

    def __init__(self) -> None:
        self.client: Client[Any] | None = None
        self.calls: list[Call] = []
        self.leaving: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> Client[Any]:
        if self.client is None:
            raise LookupError("there is no client")
        return self.client

    @property
    def session(self) -> v2.Session[Any]:
        session = self.connected._transport._session
        if session is None:
            raise LookupError("there is no session")
        return session

    def call_of(self, args: Json) -> Call:
        return self.calls[args["call"]]

    async def do_fresh(self, args: Json) -> None:
        """Forget everything, so that one process serves many tests."""
        client, self.client = self.client, None
        calls, self.calls = self.calls, []
        for call in calls:
            call.task.cancel()
        await asyncio.gather(*(call.task for call in calls), return_exceptions=True)
        session = None if client is None else client._transport._session
        if client is not None and session is not None:
            task = asyncio.create_task(client.close())
            self.leaving.add(task)
            task.add_done_callback(self.leaving.discard)
            await until(session.is_terminal)

    async def do_connect(self, args: Json) -> Json:
        """Make a client, and a session whose handshake is done."""
        metadata = from_json(args.get("metadata"))
        attempts = args.get("attempts", RETRIES.attempt_budget_capacity)

        async def address() -> Any:
            return {"uri": args["url"], "metadata": metadata}

        options = TransportOptions(
            connection_retry_options=RETRIES.model_copy(
                update={"attempt_budget_capacity": attempts}
            ),
            shutdown_all_streams_timeout_ms=5,
            **args.get("options", {}),
        )
        v2.PROTOCOL_VERSION = args.get("version", "v2.0")
        made = replit_river.Client if args.get("old") else Client
        client = made(address, args["clientId"], args.get("serverId", "SERVER"), options)
        self.client = None if args.get("old") else client
        await client.ensure_connected()
        return await self.do_report(args)

    async def do_close(self, args: Json) -> None:
        await self.connected.close()
        self.client = None

    async def do_open(self, args: Json) -> Json:
        trace_id, span_id = args.get("span", (0, 0))  # zeros are no span
        told = trace.SpanContext(trace_id, span_id, False, trace.TraceFlags(1))
        with trace.use_span(trace.NonRecordingSpan(told)):
            self.calls.append(Call(self.connected, args))
        return {"call": len(self.calls) - 1}

    async def do_give(self, args: Json) -> None:
        """Give a call requests: the ones that are listed, or so many numbers."""
        requests = from_json(args.get("requests", [])) or list(range(*args.get("numbers", [0])))
        self.call_of(args).give(requests, args.get("over", False))

    async def do_wait_taken(self, args: Json) -> None:
        """Wait until a call has taken all requests."""
        call = self.call_of(args)
        await until(lambda: not call.untaken)

    async def do_wait_sent(self, args: Json) -> Json:
        """Wait until a call has taken all requests, and the socket everything."""
        call = self.call_of(args)
        await until(lambda: not call.untaken and not self.session._send_buffer)
        return await self.do_report(args)

    async def do_wait_responses(self, args: Json) -> list[Any]:
        call = self.call_of(args)
        await until(lambda: call.task.done() or len(call.responses) >= args["count"])
        if len(call.responses) < args["count"]:
            await call.result()
            raise EOFError(f"the call ended after {len(call.responses)} responses")
        return call.responses

    async def do_result(self, args: Json) -> list[Any]:
        return await self.call_of(args).result()

    async def do_outcome(self, args: Json) -> Json:
        """Return how a call ended, and how far it came."""
        call = self.call_of(args)
        outcome = await asyncio.gather(call.result(), return_exceptions=True)
        failed = [describe(error) for error in outcome if isinstance(error, BaseException)]
        return {"responses": call.responses} | ({"error": failed[0]} if failed else {})

    async def do_cancel(self, args: Json) -> None:
        self.call_of(args).task.cancel()

    async def do_rpcs(self, args: Json) -> list[Any]:
        """Run an rpc for each init, all at once, and return their responses."""
        calls = [Call(self.connected, args | {"init": init}) for init in args["inits"]]
        return [(await call.result())[0] for call in calls]

    async def do_wait_session(self, args: Json) -> Json:
        """Wait until there is an active session."""

        def active() -> bool:
            session = self.connected._transport._session
            return session is not None and session.is_connected()

        await until(active)
        return await self.do_report(args)

    async def do_wait_over(self, args: Json) -> None:
        """Wait until a session has ended; only then does a call begin another one."""

        def over() -> bool:
            session = self.connected._transport._session
            same = session is not None and session.session_id == args["session"]
            return not same or session.is_terminal()

        await until(over)

    async def do_wait_lost(self, args: Json) -> None:
        """Wait until the session has noticed that its connection is gone."""
        await until(lambda: not self.session.is_connected())

    async def do_wait_acknowledged(self, args: Json) -> Json:
        """Wait until no more messages than that are sent and not acknowledged."""
        await until(lambda: len(self.session._ack_buffer) <= args["atMost"])
        return await self.do_report(args)

    async def do_report(self, args: Json) -> Json:
        if self.client is None:
            return {}
        session = self.session
        return {
            "session": session.session_id,
            "seq": session.seq,
            "ack": session.ack,
            "unsent": len(session._send_buffer),
            "unacknowledged": len(session._ack_buffer),
            "state": session._state.name,
        }


async def within(seconds: float, command: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await command


def uncaught(loop: asyncio.AbstractEventLoop, context: Json) -> None:
    error = context.get("exception") or RuntimeError(context["message"])
    emit({"event": "uncaught", "kind": "loop", "error": describe(error)})


async def main() -> None:
    peer = Peer()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(uncaught)
    over = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    def start(line: str) -> None:
        task = loop.create_task(answer(peer, json.loads(line), within))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(start, line)
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=read, daemon=True).start()
    emit({"event": "ready", "version": importlib.metadata.version("replit-river")})
    await over.wait()


asyncio.run(main())
