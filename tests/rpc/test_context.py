"""What handlers share: the server's context, their service's state, and the middleware's part."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.rpc.four_kinds import KINDS, Gathered, Part, answer, joined, staged
from ..helpers.rpc.procedures import WAIT

Step = Callable[[], Any]


# Context and state


def test_handlers_find_the_context_of_their_server() -> None:
    service = staged(lambda part: part.ctx.context["greeting"])
    with joined(service, context={"greeting": "hello"}) as client:
        assert client.rpc("test", "rpc", None, WAIT) == "hello"


def test_a_state_is_made_from_the_context() -> None:
    service = rpc.Service("test", state=lambda context: f"made from {context}")
    service.rpc(name="rpc")(lambda ctx, init: [ctx.state, ctx.context])
    with joined(service, context="this") as client:
        assert client.rpc("test", "rpc", None, WAIT) == ["made from this", "this"]


def test_services_share_the_context_and_not_their_states() -> None:
    services = [rpc.Service(name, state=lambda context: []) for name in ("one", "other")]
    for service in services:
        service.rpc(name="add")(lambda ctx, init: ctx.state.append(init) or list(ctx.state))
    with joined(*services, context=object()) as client:
        assert client.rpc("one", "add", 1, WAIT) == [1]
        assert client.rpc("other", "add", 2, WAIT) == [2]
        assert client.rpc("one", "add", 3, WAIT) == [1, 3]


# The end of a server


class Closing:
    """An object that its owner closes."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def __exit__(self, *_: object) -> None:
        self.close()


def test_states_are_disposed_of_when_the_server_closes() -> None:
    gone: list[str] = []
    services = [rpc.Service(name, state=name, dispose=gone.append) for name in ("first", "second")]
    with rpc.serve(services) as server:
        assert gone == []
    assert gone == ["first", "second"]
    server.shutdown(WAIT)
    assert gone == ["first", "second"]


def test_a_context_is_its_owners_to_close() -> None:
    context = {"alone": Closing(), "also": [Closing()]}
    closing = Closing()
    with rpc.serve([staged(lambda part: None)], context=context):
        pass
    with rpc.serve([staged(lambda part: None)], context=closing):
        pass
    assert not closing.closed
    assert not context["alone"].closed  # type: ignore[union-attr]


@pytest.mark.parametrize("failing", [["first"], ["first", "third"]])
def test_what_disposal_raises_is_raised_when_all_is_done(failing: list[str]) -> None:
    gone: list[str] = []

    def dispose(state: str) -> None:
        gone.append(state)
        if state in failing:
            raise LookupError(state)

    services = [
        rpc.Service(name, state=name, dispose=dispose) for name in ("first", "second", "third")
    ]
    server = rpc.serve(services)
    waiter = threading.Thread(target=server.serve_forever)
    waiter.start()
    with rpc.connect(server.url) as client:
        client.wait_connected(WAIT)
        with pytest.raises((LookupError, ExceptionGroup)) as caught:
            server.shutdown(WAIT)
    error = caught.value
    errors = error.exceptions if isinstance(error, ExceptionGroup) else [error]
    assert [each.args for each in errors] == [(name,) for name in failing]
    assert gone == ["first", "second", "third"]
    waiter.join(WAIT)
    assert not waiter.is_alive()
    server.shutdown(WAIT)  # it is over


# Middleware


@pytest.mark.parametrize("kind", KINDS)
def test_middleware_is_called_once_for_each_call_and_told_of_it(kind: rpc.Kind) -> None:
    seen: list[tuple[Any, ...]] = []
    given: list[Part] = []

    def layer(ctx: rpc.Context, init: Any, step: Step) -> Any:
        assert not ctx.ended.is_set()
        seen.append((ctx.service, ctx.procedure, ctx.client_id, ctx.metadata, init))
        assert ctx.session_id.startswith("session-")
        seen.append((ctx.session_id, ctx.stream_id, ctx.state, ctx.context))
        return step()

    def act(part: Part) -> None:
        given.append(part)
        for _ in part.requests or ():
            pass

    with (
        rpc.serve([staged(act)], middleware=[layer], context="shared") as server,
        rpc.connect(server.url, client_id="c", metadata="mine") as client,
    ):
        answer(client, kind, {"n": 1})
        assert len(given) == 1
        ctx = given[0].ctx
        assert seen == [
            ("test", str(kind), "c", "mine", {"n": 1}),
            (ctx.session_id, ctx.stream_id, None, "shared"),
        ]


def test_layers_are_called_in_order_around_the_handler() -> None:
    seen: list[str] = []

    def layer(name: str) -> Callable[..., Any]:
        def around(ctx: rpc.Context, init: Any, step: Step) -> Any:
            seen.append(f"{name} before")
            value = step()
            seen.append(f"{name} after")
            return value

        return around

    service = staged(lambda part: seen.append("handler"))
    with joined(service, middleware=[layer("outer"), layer("inner")]) as client:
        client.rpc("test", "rpc", None, WAIT)
    assert seen == ["outer before", "inner before", "handler", "inner after", "outer after"]


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.mark.parametrize("generator", [False, True], ids=["function", "generator"])
def test_context_variables_reach_inner_layers_and_the_handler(generator: bool) -> None:
    seen: list[str] = []
    service = rpc.Service("test")

    def sets(ctx: rpc.Context, init: Any, step: Step) -> Any:
        token = VARIABLE.set(init)
        try:
            return step()
        finally:
            VARIABLE.reset(token)

    def reads(ctx: rpc.Context, init: Any, step: Step) -> Any:
        seen.append(VARIABLE.get())
        return step()

    def generates(ctx: rpc.Context, init: str) -> Iterator[str]:
        yield VARIABLE.get()

    if generator:
        service.subscription(name="get")(generates)
    else:
        service.rpc(name="get")(lambda ctx, init: VARIABLE.get())
    with joined(service, middleware=[sets, reads]) as client:
        if generator:
            assert list(client.subscribe("test", "get", "set", WAIT)) == ["set"]
        else:
            assert client.rpc("test", "get", "set", WAIT) == "set"
    assert seen == ["set"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_may_answer_without_the_handler(kind: rpc.Kind) -> None:
    told = Gathered()

    def refuses(ctx: rpc.Context, init: Any, step: Step) -> Any:
        ctx.defer(lambda: told("deferred"))
        return "refused"

    def act(part: Part) -> None:
        told("handled")

    with joined(staged(act), middleware=[refuses]) as client:
        expected = [] if kind.writes_responses else "refused"
        assert answer(client, kind) == expected
        assert told.first(1) == ["deferred"]


def test_a_layer_may_fail_and_cancel_as_a_handler_may() -> None:
    def layer(ctx: rpc.Context, init: Any, step: Step) -> Any:
        match init:
            case "cancels":
                ctx.cancel("not for you")
            case "declared":
                raise rpc.RiverError("BAD", "as declared")
            case "fails":
                raise LookupError("on purpose")
        return step()

    service = staged(lambda part: "handled", errors=[rpc.ErrorSchema("BAD")])
    with joined(service, middleware=[layer]) as client:
        for init, text in (
            ("cancels", "CANCEL: not for you"),
            ("declared", "BAD: as declared"),
            ("fails", "UNCAUGHT_ERROR: the handler failed"),
        ):
            with pytest.raises(rpc.RiverError, match=text):
                client.rpc("test", "rpc", init, WAIT)
        assert client.rpc("test", "rpc", "passes", WAIT) == "handled"
