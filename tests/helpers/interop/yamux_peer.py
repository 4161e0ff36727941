"""Run a peer on PyPI `libp2p` on a bare TCP or WebSocket connection; see jsonlines.mjs.

In libp2p the muxer sits on an encrypted connection. Here it gets the bytes as they are, through the
package's own classes for the two carriers; each frame it sends is one binary message. It logs every
frame, and that is where the ledgers of what was sent and received come from.

Run by the virtual environment of installs.py; nothing here is imported by the tests.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import trio
from jsonlines import Json, answer, describe, emit, generate
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamEOF
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream
from libp2p.transport.websocket.connection import P2PWebSocketConnection
from trio_websocket import (
    WebSocketConnection,
    WebSocketRequest,
    connect_websocket,
    serve_websocket,
)

SUBPROTOCOL = "yamux"
MAX_MESSAGE = 32 * 1024 * 1024  # what the package sets for its own WebSockets
READ_SIZE = 64 * 1024
POLL = 0.005

TYPES = {"DATA": "data", "WINDOW_UPDATE": "window", "PING": "ping", "GO_AWAY": "goaway"}
FRAME = re.compile(r"YAMUX ([RT]X): type=(\w+) flags=(\S+) stream=(\d+) length=(\d+)")


def payload_of(args: Json) -> bytes:
    return bytes.fromhex(args["hex"]) if "hex" in args else generate(args["seed"], args["size"])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(POLL)


class Ledger:
    """Count the data frames that went one way, and keep all others."""

    def __init__(self) -> None:
        self.frames: list[Json] = []
        self.data_frames = self.data_bytes = self.largest = 0

    def enter(self, kind: str, flags: list[str], stream: int, length: int) -> None:
        if kind == "data":
            self.data_frames += 1
            self.data_bytes += length
            self.largest = max(self.largest, length)
        if kind != "data" or flags:
            self.frames.append({"type": kind, "flags": flags, "stream": stream, "length": length})

    def summary(self) -> Json:
        return {
            "frames": self.frames,
            "dataFrames": self.data_frames,
            "dataBytes": self.data_bytes,
            "largest": self.largest,
        }


class Ledgers(logging.Handler):
    """Read the frames off the log of the muxer."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        self.received, self.sent = Ledger(), Ledger()

    def emit(self, record: logging.LogRecord) -> None:
        found = FRAME.match(record.getMessage())
        if found is not None:
            way, kind, flags, stream, length = found.groups()
            ledger = self.received if way == "RX" else self.sent
            names = [] if flags == "0" else flags.split("+")
            ledger.enter(TYPES[kind], names, int(stream), int(length))


class Handle:
    """Name one stream."""

    def __init__(self, number: int, stream: YamuxStream, inbound: bool) -> None:
        self.number = number
        self.stream = stream
        self.inbound = inbound
        self.echo_error: Json | None = None

    def summary(self) -> Json:
        return {
            "handle": self.number,
            "id": self.stream.stream_id,
            "inbound": self.inbound,
            "status": "closed" if self.stream.closed else "open",
            "echoError": self.echo_error,
        }

    async def next(self) -> bytes:
        """Return what came, or nothing where the package says that the stream has ended."""
        try:
            return await self.stream.read(READ_SIZE)
        except MuxedStreamEOF:
            return b""

    def end(self) -> str:
        """Return what the package knows of an end beyond what it reports."""
        finished = self.stream.recv_closed and not self.stream.reset_received
        return "fin" if finished else "eof"

    async def write(self, data: bytes, chunk: int) -> None:
        for start in range(0, len(data), chunk):
            await self.stream.write(data[start : start + chunk])

    async def read_all(self) -> Json:
        digest = hashlib.sha256()
        length = 0
        try:
            while chunk := await self.next():
                digest.update(chunk)
                length += len(chunk)
        except Exception as error:
            error.extra = {"received": length}  # type: ignore[attr-defined]
            raise
        return {"length": length, "sha256": digest.hexdigest(), "end": self.end()}

    async def echo(self) -> None:
        try:
            while chunk := await self.next():
                await self.stream.write(chunk)
            await self.stream.close()
        except Exception as error:
            self.echo_error = describe(error)


class Session:
    """Hold one connection and what became of it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.connection: Yamux | None = None
        self.subprotocol: str | None = None
        self.handles: list[Handle] = []
        self.accepted: list[Handle] = []
        self.incoming = "queue"
        self.open_on_connect: Json | None = None

    def start(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        self.nursery.start_soon(self._guard, function, *args)

    async def _guard(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        try:
            await function(*args)
        except Exception as error:
            emit({"event": "uncaught", "kind": "task", "error": describe(error)})

    @property
    def muxer(self) -> Yamux:
        if self.connection is None:
            raise LookupError("there is no connection")
        return self.connection

    def handle(self, stream: YamuxStream, inbound: bool) -> Handle:
        self.handles.append(Handle(len(self.handles), stream, inbound))
        return self.handles[-1]

    def handle_of(self, args: Json) -> Handle:
        return self.handles[args["stream"]]

    async def open(self) -> Handle:
        return self.handle(await self.muxer.open_stream(), inbound=False)

    async def run(self, carrier: Any, initiator: bool) -> None:
        """Speak Yamux on a carrier until the connection ends."""
        carrier = RawConnection(carrier, initiator)
        self.connection = Yamux(carrier, ID(b"peer"), initiator)
        self.start(self._take_streams)
        if self.open_on_connect is not None:
            self.start(self.send_many, self.open_on_connect)
        await self.connection.start()

    async def _take_streams(self) -> None:
        while True:
            try:
                stream = await self.muxer.accept_stream()
            except MuxedConnUnavailable:
                return
            handle = self.handle(stream, inbound=True)
            if self.incoming == "echo":
                self.start(handle.echo)
            else:
                self.accepted.append(handle)

    async def send_many(self, args: Json) -> None:
        await self.muxer.event_started.wait()
        async with trio.open_nursery() as nursery:
            for index in range(args["count"]):
                nursery.start_soon(self.send, args, index)

    async def send(self, args: Json, index: int) -> Handle:
        handle = await self.open()
        await handle.write(generate(f"{args['seed']}-{index}", args["size"]), args["chunk"])
        await handle.stream.close()
        return handle

    # Carriers

    async def listen_tcp(self, host: str, subprotocol: str | None) -> int:
        async def serve(stream: trio.SocketStream) -> None:
            await self.run(TrioTCPStream(stream), initiator=False)

        sockets = await trio.open_tcp_listeners(0, host=host)
        self.start(trio.serve_listeners, serve, sockets)
        port: int = sockets[0].socket.getsockname()[1]
        return port

    async def listen_ws(self, host: str, subprotocol: str | None) -> int:
        async def serve(request: WebSocketRequest) -> None:
            offered = subprotocol in request.proposed_subprotocols
            socket = await request.accept(subprotocol=subprotocol if offered else None)
            await self._run_websocket(socket, initiator=False)

        server = partial(serve_websocket, max_message_size=MAX_MESSAGE)
        port: int = (await self.nursery.start(server, serve, host, 0, None)).port
        return port

    async def connect_tcp(self, host: str, port: int, subprotocol: str | None) -> None:
        carrier = TrioTCPStream(await trio.open_tcp_stream(host, port))
        self.start(self.run, carrier, True)

    async def connect_ws(self, host: str, port: int, subprotocol: str | None) -> None:
        socket = await connect_websocket(
            self.nursery,
            host,
            port,
            "/",
            use_ssl=False,
            subprotocols=[] if subprotocol is None else [subprotocol],
            max_message_size=MAX_MESSAGE,
        )
        self.start(self._run_websocket, socket, True)

    async def _run_websocket(self, socket: WebSocketConnection, initiator: bool) -> None:
        self.subprotocol = socket.subprotocol
        await self.run(P2PWebSocketConnection(socket), initiator)


class Peer:
    """Answer commands."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.session: Session
        self.ledgers = Ledgers()
        log = logging.getLogger("libp2p.stream_muxer.yamux.yamux")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(self.ledgers)

    async def start_session(self) -> None:
        async def hold(task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED) -> None:
            async with trio.open_nursery() as nursery:
                task_status.started(Session(nursery))
                await trio.sleep_forever()

        self.session = await self.nursery.start(hold)

    async def do_fresh(self, args: Json) -> None:
        """Forget everything, so that one process serves many tests."""
        self.session.nursery.cancel_scope.cancel()
        self.ledgers.clear()
        await self.start_session()

    async def do_listen(self, args: Json) -> Json:
        self.session.open_on_connect = args.get("openOnConnect")
        listen = {"tcp": self.session.listen_tcp, "ws": self.session.listen_ws}
        subprotocol = args.get("subprotocol", SUBPROTOCOL)
        return {"port": await listen[args["carrier"]](args["host"], subprotocol)}

    async def do_connect(self, args: Json) -> None:
        connect = {"tcp": self.session.connect_tcp, "ws": self.session.connect_ws}
        subprotocol = args.get("subprotocol", SUBPROTOCOL)
        await connect[args["carrier"]](args["host"], args["port"], subprotocol)
        await self.do_connected(args)

    async def do_connected(self, args: Json) -> None:
        await until(lambda: self.session.connection is not None)
        await self.session.muxer.event_started.wait()

    async def do_incoming(self, args: Json) -> None:
        self.session.incoming = args["mode"]

    async def do_open(self, args: Json) -> Json:
        return (await self.session.open()).summary()

    async def do_accept(self, args: Json) -> Json:
        await until(lambda: bool(self.session.accepted))
        return self.session.accepted.pop(0).summary()

    async def do_write(self, args: Json) -> Json:
        data = payload_of(args)
        await self.session.handle_of(args).write(data, args.get("chunk", len(data)))
        return {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    async def do_close(self, args: Json) -> None:
        await self.session.handle_of(args).stream.close()

    async def do_reset(self, args: Json) -> None:
        await self.session.handle_of(args).stream.reset()

    async def do_read(self, args: Json) -> Json:
        chunk = await self.session.handle_of(args).next()
        return {"done": not chunk, "length": len(chunk)}

    async def do_read_all(self, args: Json) -> Json:
        return await self.session.handle_of(args).read_all()

    async def do_wait_reading(self, args: Json) -> None:
        """Wait until somebody waits for bytes of a stream."""
        stream = self.session.handle_of(args).stream

        def waits() -> bool:
            event = self.session.muxer.stream_events.get(stream.stream_id)
            return event is not None and event.statistics().tasks_waiting > 0

        await until(waits)

    async def do_stall(self, args: Json) -> None:
        """Do nothing: credit returns only when somebody reads."""

    async def do_send_many(self, args: Json) -> None:
        await self.session.send_many(args)

    async def do_exchange_many(self, args: Json) -> list[Json]:
        async def exchange(index: int) -> Json:
            handle = await self.session.open()
            data = generate(f"{args['seed']}-{index}", args["size"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_and_close, handle, data, args["chunk"])
                return await handle.read_all()

        return await self._settle([partial(exchange, index) for index in range(args["count"])])

    @staticmethod
    async def _write_and_close(handle: Handle, data: bytes, chunk: int) -> None:
        await handle.write(data, chunk)
        await handle.stream.close()

    async def do_exchange_in_sequence(self, args: Json) -> list[Json]:
        answers = []
        for index in range(args["count"]):
            handle = await self.session.send(args | {"chunk": args["size"]}, index)
            answers.append(await handle.read_all())
        return answers

    async def do_read_many(self, args: Json) -> list[Json]:
        """Read inbound streams to their ends, in the order in which they arrived."""
        count = args["count"]
        accepted = self.session.accepted
        await until(lambda: len(accepted) >= count)
        taken, accepted[:count] = accepted[:count], []
        return await self._settle([handle.read_all for handle in taken])

    @staticmethod
    async def _settle(functions: list[Callable[[], Awaitable[Json]]]) -> list[Json]:
        answers: list[Json] = [{} for _ in functions]

        async def run(index: int) -> None:
            try:
                answers[index] = await functions[index]()
            except Exception as error:
                answers[index] = {"error": describe(error)}

        async with trio.open_nursery() as nursery:
            for index in range(len(functions)):
                nursery.start_soon(run, index)
        return answers

    async def do_ping(self, args: Json) -> Json:
        """Wait for the answer to the ping that the package sends by itself."""
        await until(lambda: self.session.muxer.rtt() > 0)
        return {"milliseconds": self.session.muxer.rtt() * 1000}

    async def do_go_away(self, args: Json) -> None:
        """Say so and hang up at once, which is the only way the package has."""
        await self.session.muxer.close(args["code"])

    async def do_hang_up(self, args: Json) -> None:
        """Close the carrier in good order, without a word in Yamux."""
        await self.session.muxer.secured_conn.close()

    async def do_wait_data(self, args: Json) -> Json:
        """Wait until so many bytes of data frames went one way."""
        ledger = getattr(self.ledgers, args["way"])
        await until(lambda: ledger.data_bytes >= args["atLeast"])
        return {"dataBytes": ledger.data_bytes}

    async def do_wait_frames(self, args: Json) -> Json:
        ledger = getattr(self.ledgers, args["way"])

        def found() -> list[Json]:
            return [
                frame
                for frame in ledger.frames
                if frame["type"] == args["type"] and args.get("flag", "") in ["", *frame["flags"]]
            ]

        await until(lambda: len(found()) >= args["count"])
        return {"frames": found()}

    async def do_wait_closed(self, args: Json) -> None:
        await self.session.muxer.event_closed.wait()

    async def do_report(self, args: Json) -> Json:
        muxer = self.session.muxer
        return {
            "streams": [handle.summary() for handle in self.session.handles],
            "live": len(muxer.streams),
            "status": "closed" if muxer.is_closed else "open",
            "subprotocol": self.session.subprotocol,
            "received": self.ledgers.received.summary(),
            "sent": self.ledgers.sent.summary(),
        }


async def within(seconds: float, command: Awaitable[Any]) -> Any:
    try:
        with trio.fail_after(seconds):
            return await command
    except trio.TooSlowError:
        raise TimeoutError from None


async def lines() -> AsyncIterator[str]:
    """Yield the lines of stdin."""
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        async for data in stdin:
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line.decode()


async def main() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery)
        await peer.start_session()
        emit({"event": "ready", "version": importlib.metadata.version("libp2p")})
        async for line in lines():
            nursery.start_soon(answer, peer, json.loads(line), within)
        nursery.cancel_scope.cancel()


trio.run(main)
