"""What a server does to keep the metadata of its clients fresh."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc import testing
from wsmux.rpc.wire.handshake import REHANDSHAKE_STREAM

from ..helpers.inside import client_engine_of
from ..helpers.rpc.procedures import WAIT
from ..helpers.timeouts import CONNECTS
from ..helpers.waiting import wait_for

Told = list[tuple[Any, ...]]

# For tests that do not wait until an answer is late.
PATIENT = rpc.Options(handshake_timeout=2 * WAIT)


def offered() -> rpc.Service:
    """Return a service that tells what it knows of its caller."""
    service = rpc.Service("me")

    @service.rpc()
    def name(ctx: rpc.Context, init: object) -> object:
        return ctx.metadata

    @service.stream()
    def tells(ctx: rpc.Context, init: object, requests: rpc.Readable[object]) -> Iterator[object]:
        for _ in requests:
            yield ctx.metadata

    @service.subscription()
    def names(ctx: rpc.Context, init: object, responses: rpc.Writable[object]) -> None:
        responses.write(ctx.metadata)
        ctx.ended.wait(WAIT)

    return service


def numbered() -> Any:
    """Return a function that makes other metadata each time."""
    numbers = itertools.count(1)
    return lambda: next(numbers)


@contextmanager
def joined(
    metadata: Any, options: rpc.Options = PATIENT, **serving: Any
) -> Iterator[tuple[rpc.RpcServer, rpc.Client, Told]]:
    """Yield a server, a client that has called, and what the server told of failures."""
    told: Told = []
    serving |= {"on_protocol_error": lambda *t: told.append(t), "options": options}
    with (
        rpc.serve([offered()], **serving) as server,
        rpc.connect(server.url, client_id="c", metadata=metadata) as client,
    ):
        client.rpc("me", "name", None, WAIT)
        yield server, client, told


def test_a_client_is_asked_again_and_handlers_see_it() -> None:
    with joined(numbered()) as (server, client, _):
        assert client.rpc("me", "name", None, WAIT) == 1
        assert server.handler.request_handshake("c")
        wait_for(lambda: client.rpc("me", "name", None, WAIT) == 2)


def test_a_handler_that_runs_sees_it_too() -> None:
    with joined(numbered()) as (server, client, _), client.stream("me", "tells", None, WAIT) as now:

        def told() -> object:
            now.write(None)
            return now.read()

        assert told() == 1
        assert server.handler.request_handshake("c")
        wait_for(lambda: told() == 2)
        now.close_write()
        assert list(now) == []


def test_who_is_not_connected_is_not_asked() -> None:
    with joined(numbered()) as (server, _, _):
        assert not server.handler.request_handshake("somebody")


def test_what_validates_is_told_what_was_there_before() -> None:
    seen: list[tuple[Any, Any, str]] = []

    def validate(metadata: Any, previous: Any, client_id: str) -> Any:
        seen.append((metadata, previous, client_id))
        return metadata * 10

    with joined(numbered(), validate=validate) as (server, client, _):
        server.handler.request_handshake("c")
        wait_for(lambda: client.rpc("me", "name", None, WAIT) == 20)
    assert seen == [(1, None, "c"), (2, 10, "c")]


def test_metadata_are_renewed_before_they_expire() -> None:
    """Each is good for a while; the client is asked one ``handshake_timeout`` before."""
    options = rpc.Options(handshake_timeout=10.0)
    with joined(numbered(), options=options, expiry=lambda _: time.time() + 10.02) as (
        _,
        client,
        told,
    ):
        wait_for(lambda: client.rpc("me", "name", None, WAIT) >= 3)
    assert not told


def test_metadata_that_have_expired_are_refused() -> None:
    told: Told = []
    with (
        rpc.serve([offered()], expiry=lambda _: time.time() - 1) as server,
        rpc.connect(server.url, on_protocol_error=lambda *t: told.append(t)) as client,
    ):
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
            client.rpc("me", "name", None, WAIT)
        wait_for(lambda: told)
    text = "handshake failed: the metadata have expired"
    assert told[0][1:] == (text, "REJECTED_BY_CUSTOM_HANDLER")


def test_no_answer_in_time_ends_the_session() -> None:
    """The client's function blocks, which stops neither its heartbeats nor its calls."""
    go = threading.Event()
    first = iter([True])

    def metadata() -> str:
        if next(first, False):
            return "first"
        go.wait(WAIT)
        return "late"

    options = rpc.Options(handshake_timeout=CONNECTS)
    with joined(metadata, options=options) as (server, client, told):
        with client.subscribe("me", "names", None, WAIT) as names:
            assert names.read() == "first"
            server.handler.request_handshake("c")
            wait_for(lambda: told)
            go.set()
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
                names.read()
        assert ("handshake_failed", "the client sent no new metadata in time") in told
        assert client.rpc("me", "name", None, WAIT) == "late"


def test_a_validation_that_fails_refuses_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def validate(*_: object) -> None:
        raise LookupError("a secret")

    told: Told = []
    with (
        rpc.serve([offered()], validate=validate) as server,
        rpc.connect(server.url, on_protocol_error=lambda *t: told.append(t)) as client,
    ):
        with pytest.raises(rpc.RiverError, match="the validation of the handshake failed"):
            client.rpc("me", "name", None, WAIT)
        wait_for(lambda: told)
    assert told[0][2] == "REJECTED_BY_CUSTOM_HANDLER"
    assert "a secret" in caplog.text


def test_a_client_may_be_one_that_is_not_served_any_more() -> None:
    def validate(*_: object) -> None:
        raise rpc.Rejection("come with version 2", unsupported=True)

    told: Told = []
    with (
        rpc.serve([offered()], validate=validate) as server,
        rpc.connect(server.url, on_protocol_error=lambda *t: told.append(t)) as client,
    ):
        with pytest.raises(rpc.RiverError, match="come with version 2"):
            client.rpc("me", "name", None, WAIT)
        wait_for(lambda: told)
    assert told[0][2] == "REJECTED_UNSUPPORTED_CLIENT"


def reject_second(metadata: Any, previous: Any, client_id: str) -> Any:
    if previous is not None:
        raise rpc.Rejection("no longer welcome")
    return metadata


@pytest.mark.parametrize(
    ("serving", "text"),
    [
        ({"validate": reject_second}, "no longer welcome"),
        ({"handshake_schema": {"maximum": 1}}, "received malformed handshake metadata"),
    ],
    ids=["validate", "schema"],
)
def test_refused_metadata_end_the_session(serving: dict[str, Any], text: str) -> None:
    with joined(numbered(), **serving) as (server, client, told):
        with client.subscribe("me", "names", None, WAIT) as names:
            assert names.read() == 1
            server.handler.request_handshake("c")
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
                names.read()
        wait_for(lambda: ("handshake_failed", text) in told)


def send(client: rpc.Client, payload: Any) -> None:
    """Say something on the stream for new metadata."""
    engine = client_engine_of(client)
    session = engine.connector.session
    assert session is not None
    with engine.mutex:
        session.send(engine.codec.pack(payload), stream_id=REHANDSHAKE_STREAM, flags=0)
        engine.settle_locked([])
    engine.after([])


def test_anything_else_on_that_stream_ends_the_session() -> None:
    with joined(numbered()) as (_, client, told):
        send(client, {"type": "CLOSE"})
        wait_for(lambda: told)
    kind, text = told[0]
    assert (kind, text) == ("handshake_failed", "expected a payload of type REHANDSHAKE_RESP")


class Slowly:
    """Validate what is new once the test says so.

    Attributes:
        seen: what was to be validated, and after what.
    """

    def __init__(self) -> None:
        self.go, self.entered = threading.Event(), threading.Event()
        self.seen: list[tuple[Any, Any]] = []

    def __call__(self, metadata: Any, previous: Any, client_id: str) -> Any:
        self.seen.append((metadata, previous))
        if previous is not None:
            self.entered.set()
            self.go.wait(WAIT)
        return metadata


def threads_that_validate() -> int:
    names = [thread.name for thread in threading.enumerate()]
    return sum(fnmatch(name, "wsmux-server-*-metadata") for name in names)


def test_new_metadata_are_validated_one_at_a_time_and_the_newest_last() -> None:
    """A client cannot keep more than one thread busy with them, nor have more than one kept."""
    validate = Slowly()
    with joined(numbered(), validate=validate) as (_, client, told):
        send(client, {"type": "REHANDSHAKE_RESP", "metadata": 7})
        assert validate.entered.wait(WAIT)
        for metadata in (8, 9):
            send(client, {"type": "REHANDSHAKE_RESP", "metadata": metadata})
        assert client.rpc("me", "name", None, WAIT) == 1  # it was handled after those
        assert threads_that_validate() == 1
        validate.go.set()
        wait_for(lambda: client.rpc("me", "name", None, WAIT) == 9)
        assert not told
    assert validate.seen == [(1, None), (7, 1), (9, 7)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_validation_that_leaves_its_thread_ends_the_session() -> None:
    """Metadata that come later would wait for it for ever."""

    def validate(metadata: Any, previous: Any, client_id: str) -> Any:
        if previous is not None:
            raise SystemExit(3)
        return metadata

    with joined(numbered(), validate=validate) as (server, _, told):
        server.handler.request_handshake("c")
        wait_for(lambda: told)
    text = "the validation of new metadata has ended its thread"
    assert told[0] == ("handshake_failed", text)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_metadata_that_wait_for_a_validation_that_leaves_its_thread_are_not_forgotten() -> None:
    """It is for a connection that was replaced; theirs would never be asked again."""
    told: Told = []
    entered, go = threading.Event(), threading.Event()

    def validate(metadata: Any, *_: object) -> Any:
        if metadata == "leaves":
            entered.set()
            go.wait(WAIT)
            raise SystemExit(3)
        return metadata

    serving = rpc.Serving(
        validate=validate, on_protocol_error=lambda *t: told.append(t), options=PATIENT
    )
    with testing.linked([offered()], serving, metadata=numbered(), options=PATIENT) as link:
        assert link.client.rpc("me", "name", None, WAIT) == 1
        send(link.client, {"type": "REHANDSHAKE_RESP", "metadata": "leaves"})
        assert entered.wait(WAIT)
        link.cut()
        assert link.client.rpc("me", "name", None, WAIT) == 2
        send(link.client, {"type": "REHANDSHAKE_RESP", "metadata": "waits"})
        assert link.client.rpc("me", "name", None, WAIT) == 2  # it was handled after that
        go.set()
        wait_for(lambda: told)
    assert told == [("handshake_failed", "the validation of new metadata has ended its thread")]


def test_who_has_yet_to_answer_is_not_asked_again() -> None:
    go = threading.Event()
    made: list[int] = []

    def metadata() -> int:
        made.append(len(made) + 1)
        if len(made) > 1:
            go.wait(WAIT)
        return made[-1]

    with joined(metadata) as (server, client, told):
        for _ in range(3):
            assert server.handler.request_handshake("c")
        go.set()
        wait_for(lambda: client.rpc("me", "name", None, WAIT) == 2)
        assert server.handler.request_handshake("c")
        wait_for(lambda: client.rpc("me", "name", None, WAIT) == 3)
        assert (made, told) == ([1, 2, 3], [])


def test_who_is_asked_again_while_its_answer_is_validated_lives() -> None:
    validate = Slowly()
    with joined(numbered(), validate=validate) as (server, client, told):
        assert server.handler.request_handshake("c")
        assert validate.entered.wait(WAIT)
        assert server.handler.request_handshake("c")
        with client.stream("me", "tells", None, WAIT) as now:
            for _ in range(20):  # the second answer comes meanwhile, or later
                now.write(None)
                assert now.read() == 1
        validate.go.set()
        wait_for(lambda: client.rpc("me", "name", None, WAIT) == 3)
        assert not told
    assert validate.seen == [(1, None), (2, 1), (3, 2)]


def test_an_answer_may_be_validated_for_long() -> None:
    """It came in time, and what the server does with it is not the client's affair."""
    told: Told = []
    validate, clock = Slowly(), testing.Clock()
    serving = rpc.Serving(validate=validate, on_protocol_error=lambda *t: told.append(t))
    with testing.linked(
        [offered()], serving, clock=clock, client_id="c", metadata=numbered()
    ) as link:
        assert link.client.rpc("me", "name", None, WAIT) == 1
        assert link.handler.request_handshake("c")
        assert validate.entered.wait(WAIT)
        clock.advance(5 * rpc.Options().handshake_timeout)
        assert link.client.rpc("me", "name", None, WAIT) == 1
        validate.go.set()
        wait_for(lambda: link.client.rpc("me", "name", None, WAIT) == 2)
    assert not told


def test_metadata_outlive_the_session_in_its_handlers() -> None:
    seen: list[Any] = []
    entered = threading.Event()
    service = rpc.Service("me")

    @service.rpc()
    def waits(ctx: rpc.Context, init: object) -> None:
        entered.set()
        ctx.ended.wait(WAIT)
        seen.append(ctx.metadata)

    options = rpc.Options(session_disconnect_grace=0.01)
    with rpc.serve([service], options=options) as server:
        with rpc.connect(server.url, metadata=lambda: "mine") as client:
            client.submit("me", "waits", None)
            assert entered.wait(WAIT)
        wait_for(lambda: seen)
        assert server.handler.sessions == 0
    assert seen == ["mine"]
