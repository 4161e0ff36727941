"""Routes of River ask the application who a client is, and count its users, as those of a Mux."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from flask import Flask, abort, request, session

import wsmux
from wsmux import rpc
from wsmux.rpc.errors import CANCEL

from ..helpers.redis_server import RedisServer, redis_server
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving

redis = pytest.fixture(scope="module", name="redis")(redis_server)

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def offered() -> rpc.Service:
    service = rpc.Service("me")

    @service.rpc()
    def user(ctx: rpc.Context, init: object) -> object:
        return ctx.user

    return service


def by_header(request: wsmux.Request) -> str | bool:
    return request.headers.get("x-user", False)


@contextmanager
def site(**options: Any) -> Iterator[tuple[int, rpc.RpcHandler]]:
    app = Flask("app")
    app.secret_key = "a key of the tests"
    with rpc.flask(app, "/river", [offered()], **options) as handler, serving(app) as port:
        yield port, handler


@contextmanager
def client(port: int, user: str, **options: Any) -> Iterator[rpc.Client]:
    options = {"headers": {"X-User": user}, "is_fatal": lambda error: True, **options}
    with rpc.connect(f"ws://127.0.0.1:{port}/river", **options) as made:
        yield made


def who(made: rpc.Client) -> Any:
    return made.rpc("me", "user", None, WAIT)


@contextmanager
def asked(port: int, query: str = "", **headers: str) -> Iterator[HTTPResponse]:
    """Ask for a WebSocket, and yield the answer."""
    asking = HTTPConnection("127.0.0.1", port, timeout=WAIT)
    asking.request("GET", f"/river{query}", headers={**UPGRADE, **headers})
    answer = asking.getresponse()
    try:
        yield answer
    finally:
        answer.close()
        asking.close()


def test_a_call_knows_the_user_of_its_connection() -> None:
    with (
        site(authorize=by_header) as (port, _),
        client(port, "ann") as ann,
        client(port, "bob") as bob,
    ):
        assert (who(ann), who(bob)) == ("ann", "bob")


def test_who_is_refused_is_not_upgraded_and_in_the_audit_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        site(authorize=by_header) as (port, _),
        caplog.at_level(logging.INFO, "wsmux.audit"),
        asked(port) as answer,
    ):
        assert answer.status == 403
        assert b"not allowed" in answer.read()
    assert (
        'refused path=/river peer=127.0.0.1 user=- status=403 why="not allowed"' in caplog.messages
    )


@pytest.mark.parametrize(("query", "status"), [("gone", 410), ("busy", 503)])
def test_what_the_application_raises_is_answered_as_in_any_view(query: str, status: int) -> None:
    def authorize(seen: wsmux.Request) -> bool:
        assert session.get("user") is None  # in the context of the request
        assert request.path == seen.path
        if seen.query == "gone":
            abort(410)
        raise wsmux.HandshakeError("come back at noon", 503)

    with site(authorize=authorize) as (port, _), asked(port, f"?{query}") as answer:
        assert answer.status == status


def test_only_the_same_user_replaces_a_session() -> None:
    with (
        site(authorize=by_header) as (port, _),
        client(port, "ann", client_id="one") as ann,
    ):
        assert who(ann) == "ann"
        with (
            client(port, "bob", client_id="one") as other,
            pytest.raises(rpc.RiverError, match="of somebody else has this client"),
        ):
            who(other)
        assert who(ann) == "ann"


def test_new_metadata_are_of_the_same_user() -> None:
    validated: list[object] = []

    def validate(metadata: object, previous: object, client: str) -> object:
        validated.append(metadata)
        return metadata

    numbers = itertools.count()
    with (
        site(authorize=by_header, validate=validate) as (port, handler),
        client(port, "ann", client_id="one", metadata=lambda: next(numbers)) as ann,
    ):
        assert who(ann) == "ann"
        (before,) = handler.list_sessions()
        assert handler.request_handshake("one")
        wait_for(lambda: validated == [0, 1])
        assert who(ann) == "ann"
        (behind,) = handler.list_sessions()
        assert behind.number == before.number


def test_connections_of_a_user_are_counted() -> None:
    limits = wsmux.UserLimits(connections=1)
    with (
        site(authorize=by_header, user_limits=limits) as (port, _),
        client(port, "ann") as ann,
        client(port, "bob") as bob,
    ):
        assert (who(ann), who(bob)) == ("ann", "bob")
        with asked(port, **{"X-User": "ann"}) as answer:
            assert answer.status == 429
            assert b"1 connections of this user are open" in answer.read()


def test_calls_of_a_user_are_counted_as_streams() -> None:
    limits = wsmux.UserLimits(streams_per_minute=2)
    with (
        site(authorize=by_header, user_limits=limits) as (port, _),
        client(port, "ann") as ann,
        client(port, "bob") as bob,
    ):
        assert who(ann) == who(ann) == "ann"
        with pytest.raises(rpc.RiverError, match="as many calls as a minute allows") as caught:
            who(ann)
        assert caught.value.code == CANCEL
        assert who(bob) == "bob"


def test_a_shutdown_gives_back_what_is_counted_together(redis: RedisServer) -> None:
    limits = wsmux.UserLimits(connections=1, redis=redis.url, namespace="river")
    for _ in range(2):  # the second one would be one too many for 15 s
        with (
            site(authorize=by_header, user_limits=limits) as (port, handler),
            client(port, "ann") as ann,
        ):
            assert who(ann) == "ann"
            handler.shutdown(WAIT)


def test_wrong_options_are_refused_where_the_route_is_made() -> None:
    app = Flask("app")
    with pytest.raises(TypeError, match="authorize must be a function"):
        rpc.flask(app, "/river", [], authorize="ann")  # type: ignore[arg-type]
    limits = wsmux.UserLimits(connections=1)
    with pytest.raises(ValueError, match="^the route /river with user_limits= needs authorize="):
        rpc.flask(app, "/river", [], user_limits=limits)
