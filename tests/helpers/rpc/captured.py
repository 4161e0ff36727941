"""Play one side of captured conversations by hand, and compare the other side, which is ours.

``vectors.json`` holds what a client and a server of the TypeScript implementation said to each
other, message by message, "c2s" from the client and "s2c" to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest

from wsmux import rpc
from wsmux.rpc.wire.values import BigInt

from ..inside import client_engine_of
from ..raw_peer import BINARY
from ..waiting import wait_for
from .procedures import WAIT
from .raw_river import RawRiver, RawServer

__all__ = ["CODECS", "Captured", "Theirs", "captured", "ids_of", "parsed", "serve"]

VECTORS = json.loads((Path(__file__).parents[2] / "rpc/wire/vectors.json").read_text())["codecs"]

# As the vectors call them, and as we do.
CODECS = {"json": "json", "binary": "msgpack"}

# In whose answers the sentences are our own.
OWN_WORDS = {
    "rpc_uncaught",
    "rpc_unknown_procedure",
    "rpc_cancelled_by_client",
    "stream_bad_request",
    "refused_version",
    "refused_malformed",
    "refused_unknown_session",
}

# Fields of our handshakes that shipped clients do not send.
OURS = {"isReconnect", "attempt"}

# No heartbeat, and no end of a session, comes in between.
QUIET = rpc.Options(
    heartbeat_interval=600,
    session_disconnect_grace=600,
    handshake_timeout=600,
    connection_timeout=600,
)


class Captured(NamedTuple):
    """One frame of a conversation."""

    scenario: str
    codec: str
    from_client: bool
    data: bytes  # of a message
    close: int | None  # the code of a close

    @property
    def fields(self) -> dict[str, Any]:
        return parsed(self.codec, self.data)

    @property
    def ids(self) -> list[str]:
        """Return the ids in it that its sender has made, in the order in which ours makes them."""
        fields = self.fields
        own = [fields["id"]]
        if fields["payload"].get("type") in ("HANDSHAKE_REQ", "HANDSHAKE_RESP"):
            return [*own, fields["streamId"]]
        return [fields["streamId"], *own] if "serviceName" in fields else own


def captured(codec: str, *scenarios: str) -> list[Captured]:
    """Return the frames of conversations, one after the other."""
    return [
        Captured(
            scenario,
            codec,
            frame["dir"] == "c2s",
            bytes.fromhex(frame.get("hex", "")),
            frame["code"] if frame["opcode"] == "close" else None,
        )
        for scenario in scenarios
        for frame in VECTORS[codec][scenario]["frames"]
    ]


def parsed(codec: str, data: bytes) -> dict[str, Any]:
    """Return the fields of a message without our codecs; bigints stay what they travel as."""
    fields: dict[str, Any] = json.loads(data) if codec == "json" else msgpack.unpackb(data)
    return fields


def told(fields: dict[str, Any], own_words: bool) -> dict[str, Any]:
    """Return the fields that must be the same."""

    def worded(value: Any) -> Any:
        if isinstance(value, dict):
            sentences = ("message", "reason")
            return {
                name: "..." if own_words and name in sentences else worded(each)
                for name, each in value.items()
                if name not in OURS
            }
        return [worded(item) for item in value] if isinstance(value, list) else value

    rest = {name: value for name, value in fields.items() if name != "tracing"}
    return worded(rest)  # type: ignore[no-any-return]


def check(frame: Captured, ours: bytes) -> None:
    """Compare a message of ours with the captured one."""
    own_words = frame.scenario in OWN_WORDS
    said = told(parsed(frame.codec, ours), own_words)
    expected = told(frame.fields, own_words)
    assert said == expected, f"{frame.scenario}: {said} instead of {expected}"
    if "tracing" not in frame.fields and not own_words:
        assert len(ours) == len(frame.data), f"{frame.scenario}: {ours!r} for {frame.data!r}"


def give_ids(monkeypatch: pytest.MonkeyPatch, module: str, ids: list[str]) -> None:
    """Let a module make these ids."""
    left = iter(ids)
    monkeypatch.setattr(f"wsmux.rpc.engine.{module}.new_id", lambda: next(left))


# The procedures of the captured server


class Boom(Exception):
    pass


class Offered:
    """Hold the service ``test``.

    Attributes:
        gathering: a stream is answered when all its requests have come, as it was captured; a
            handler that answers at once would say in some order how much has come.
    """

    def __init__(self) -> None:
        self.gathering = True
        self.service = service = rpc.Service("test", state=lambda context: {"sum": 0})
        extras = {"type": "object"}
        service.rpc()(self.add)
        service.rpc(errors=[rpc.ErrorSchema("DIV_BY_ZERO", extras=extras)])(self.divide)
        service.rpc()(self.fail)
        service.rpc(name="bytes")(self.measured)
        service.rpc()(self.big)
        service.rpc()(self.hang)
        service.upload(name="sum")(self.total)
        service.upload(name="sumUpTo")(self.total_up_to)
        service.subscription()(self.count)
        message = {"type": "object", "properties": {"msg": {"type": "string"}}, "required": ["msg"]}
        service.stream(request=message)(self.echo)

    def add(self, ctx: rpc.Context, init: Any) -> Any:
        ctx.state["sum"] += init["n"]
        return {"result": ctx.state["sum"]}

    def divide(self, ctx: rpc.Context, init: Any) -> Any:
        raise rpc.RiverError("DIV_BY_ZERO", "cannot divide by zero", {"numerator": init["a"]})

    def fail(self, ctx: rpc.Context, init: Any) -> Any:
        raise Boom(init["message"])

    def measured(self, ctx: rpc.Context, init: Any) -> Any:
        return {"data": init["data"], "length": len(init["data"])}

    def big(self, ctx: rpc.Context, init: Any) -> Any:
        return {"value": BigInt(init["value"] + 1)}

    def hang(self, ctx: rpc.Context, init: Any) -> None:
        assert ctx.ended.wait(WAIT)

    def total(self, ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Any:
        numbers = [request["n"] for request in requests]
        return {"result": sum(numbers), "count": len(numbers)}

    def total_up_to(self, ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Any:
        if sum(request["n"] for request in requests) > init["limit"]:
            ctx.cancel(f"over {init['limit']}")

    def count(self, ctx: rpc.Context, init: Any) -> Iterator[Any]:
        for number in range(init["from"], init["to"] + 1):
            yield {"n": number}

    def echo(self, ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Iterator[Any]:
        for request in list(requests) if self.gathering else requests:
            yield {"response": init.get("prefix", "") + request["msg"]}


class Ours:
    """Serve, with a peer by hand that says what the captured client did."""

    def __init__(self, codec: str, **serving: Any) -> None:
        self.codec = codec
        self.offered = Offered()
        self._stack = ExitStack()
        options = {"options": QUIET, "expose_errors": True} | serving
        self.server = self._stack.enter_context(
            rpc.serve([self.offered.service], codec=CODECS[codec], **options)
        )
        self.dial()

    def dial(self) -> None:
        """Begin another connection; the last one is cut."""
        self._stack.callback(lambda peer: peer.sock.close(), peer := self._peer())
        self.peer = peer

    def _peer(self) -> RawRiver:
        return RawRiver.dial(self.server.port, CODECS[self.codec], websocket=True)

    def replay(self, frame: Captured) -> None:
        """Send a frame of the client, or check that the server sends one like that."""
        if frame.close is not None:
            assert frame.from_client or self.peer.recv_end() == frame.close, frame.scenario
        elif frame.from_client:
            self.peer.send_bytes(frame.data)
        else:
            opcode, data = self.peer.recv_frame()
            assert opcode == BINARY, frame.scenario
            check(frame, data)

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            self.peer.sock.close()  # or the server would wait for an answer to its close


def serve(monkeypatch: pytest.MonkeyPatch, frames: list[Captured], **serving: Any) -> Ours:
    """Return a server that makes the ids which the captured one made."""
    ids = [i for frame in frames if frame.data and not frame.from_client for i in frame.ids]
    give_ids(monkeypatch, "server_engine", ids)
    return Ours(frames[0].codec, **serving)


class Theirs:
    """The captured server by hand, for a client of ours."""

    def __init__(
        self, codec: str, monkeypatch: pytest.MonkeyPatch, *ids: str, **given: Any
    ) -> None:
        self.codec = codec
        # The first is of the client's instance, which the captured one lacks. A session's id is
        # made of two, the captured one of one.
        give_ids(monkeypatch, "client_engine", ["instance", ids[0], "", *ids[1:]])
        self._stack = ExitStack()
        self._server = self._stack.enter_context(RawServer(CODECS[codec], websocket=True))
        self.refusals: list[Any] = []
        self.client = rpc.connect(
            self._server.url,
            codec=CODECS[codec],
            client_id="client",
            options=QUIET,
            on_protocol_error=lambda *failure: self.refusals.append(failure),
            **given,
        )

    def accept(self, before: Callable[[], object] | None = None) -> None:
        """Take a connection; ``before`` comes before the client can greet."""
        self.peer = self._server.accept(before)
        self._stack.callback(self.peer.sock.close)

    def replay(self, frame: Captured) -> None:
        """Send a frame of the server, or check that the client sends one like that."""
        if not frame.from_client:
            self.peer.send_bytes(frame.data)
            return
        opcode, data = self.peer.recv_frame()
        assert opcode == BINARY, frame.scenario
        check(frame, data)

    def wait_received(self, count: int) -> None:
        """Wait until the client has got so many messages."""
        session = client_engine_of(self.client).connector.session
        assert session is not None
        wait_for(lambda: session.expected_state().next_expected == count)

    def __enter__(self) -> Theirs:
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            self.peer.sock.close()
            self.client.close()


def ids_of(frames: list[Captured]) -> list[str]:
    """Return the ids that a client has made; the first of all is that of its session."""
    session = frames[0].fields["payload"]["sessionId"].removeprefix("session-")
    return [session, *(i for frame in frames if frame.from_client for i in frame.ids)]
