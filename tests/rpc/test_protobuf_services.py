"""Methods of a protobuf service, served and called over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc import testing
from wsmux.rpc.protobuf.methods import CODES
from wsmux.rpc.protobuf.stub import ProtobufStub

from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.protobuf_words import NAMES, WORDS, Number, Word, failure, served


@pytest.fixture(
    params=[(t, c) for t in ("websocket", "tcp") for c in ("json", "msgpack", "protobuf")],
    ids="-".join,
)
def words(request: pytest.FixtureRequest) -> Iterator[ProtobufStub]:
    """Return what calls the service, for each codec over each carrier."""
    transport, codec = request.param
    with (
        rpc.serve([served()], codec=codec, transport=transport) as server,
        rpc.connect(server.url, codec=codec, timeout=WAIT) as client,
    ):
        yield client.protobuf(WORDS)


@pytest.fixture
def client() -> Iterator[rpc.Client]:
    with (
        rpc.serve([served()], codec="protobuf", expose_errors=True) as server,
        rpc.connect(server.url, codec="protobuf", timeout=WAIT) as client,
    ):
        yield client


# Each kind


def test_a_unary_method_returns_its_response(words: ProtobufStub) -> None:
    assert words.Shout(Word(text="hello")) == Word(text="HELLO")
    assert words["Shout"](Word()) == Word()


def test_a_unary_error_has_what_came_with_it(words: ProtobufStub) -> None:
    error = failure(lambda: words.Shout(Word(text="bad")))
    assert (error.code, error.message, error.extra) == ("INVALID_ARGUMENT", "no such word", NAMES)


def test_a_handler_cancels_its_call(words: ProtobufStub) -> None:
    error = failure(lambda: words.Shout(Word(text="cancel")))
    assert (error.code, error.message) == ("CANCEL", "by the handler")


def test_a_server_sends_several_responses(words: ProtobufStub) -> None:
    assert list(words.Spell(Word(text="abc"))) == [Word(text=each) for each in "abc"]
    assert list(words.Spell(Word())) == []


def test_a_client_sends_several_requests(words: ProtobufStub) -> None:
    with words.Count() as count:
        for _ in range(3):
            count.write(Word(text="x"))
        assert count.finish() == Number(value=3)
    with words.Count() as count:
        assert count.finish() == Number()


def test_both_send_several(words: ProtobufStub) -> None:
    with words.Chat() as chat:
        for text in ("a", "b"):
            chat.write(Word(text=text))
            assert chat.read() == Word(text=text.upper())
        chat.close_write()
        assert list(chat) == []


def test_a_response_may_be_an_error_and_reading_goes_on(words: ProtobufStub) -> None:
    with words.Spell(Word(text="a?b")) as spell:
        assert spell.read() == Word(text="a")
        assert failure(spell.read).code == "OUT_OF_RANGE"
        assert list(spell) == [Word(text="b")]


# Failures


@pytest.mark.parametrize("text", ["fail", "undeclared", "more", "bytes", "number"])
def test_a_handler_that_fails_is_an_error(words: ProtobufStub, text: str) -> None:
    error = failure(lambda: words.Shout(Word(text=text)))
    assert (error.code, error.message) == ("UNCAUGHT_ERROR", "the handler failed")
    assert words.Shout(Word(text="on")) == Word(text="ON")


def test_a_handler_that_fails_among_responses_ends_them(words: ProtobufStub) -> None:
    with words.Spell(Word(text="a!b")) as spell:
        assert spell.read() == Word(text="a")
        assert failure(spell.read).code == "UNCAUGHT_ERROR"
        assert list(spell) == []


def test_the_text_of_an_exception_is_told_to_those_who_may_know(client: rpc.Client) -> None:
    words = client.protobuf(WORDS)
    assert failure(lambda: words.Shout(Word(text="fail"))).message == "'fail'"


def test_a_method_without_a_handler_is_unimplemented(words: ProtobufStub) -> None:
    assert failure(lambda: words.Later(Word())).code == "UNIMPLEMENTED"


def test_a_cancelled_call_ends_at_both_sides() -> None:
    told: list[Any] = []
    with (
        rpc.serve([served(told)], codec="protobuf") as server,
        rpc.connect(server.url, codec="protobuf", timeout=WAIT) as client,
    ):
        words = client.protobuf(WORDS)
        abort = rpc.Abort()
        with words.Chat(abort=abort) as chat:
            chat.write(Word(text="a"))
            assert chat.read() == Word(text="A")
            abort.set()
            assert failure(chat.read).code == "CANCEL"
        assert failure(lambda: words.Shout(Word(), abort=abort)).code == "CANCEL"
        assert words.Shout(Word(text="on")) == Word(text="ON")
    assert [error.code for error in told] == ["CANCEL"]


def test_a_client_has_an_event_for_the_calls_of_methods_too() -> None:
    abort = rpc.Abort()
    with (
        rpc.serve([served([])], codec="protobuf") as server,
        rpc.connect(server.url, codec="protobuf", timeout=WAIT, abort=abort) as client,
    ):
        words = client.protobuf(WORDS)
        assert words.Shout(Word(text="on")) == Word(text="ON")
        abort.set()
        assert failure(lambda: words.Shout(Word())).code == "CANCEL"
        assert words.Shout(Word(text="on"), abort=rpc.Abort()) == Word(text="ON")


def test_a_call_has_a_time() -> None:
    hold = threading.Event()
    slow = rpc.ProtobufService(WORDS)

    @slow.method()
    def Later(ctx: rpc.Context, request: Any) -> Any:
        hold.wait(WAIT)
        return Word()

    with rpc.serve([slow]) as server, rpc.connect(server.url) as client:
        with pytest.raises(TimeoutError, match=r"shop\.v1\.Words\.Later did not answer"):
            client.protobuf(WORDS).Later(Word(), timeout=0.05)
        hold.set()


def test_results_instead_of_exceptions() -> None:
    with (
        rpc.serve([served()], codec="protobuf") as server,
        rpc.connect(server.url, codec="protobuf", errors="results", timeout=WAIT) as client,
    ):
        words = client.protobuf(WORDS)
        assert words.Shout(Word(text="a")) == rpc.Ok(Word(text="A"))
        found = words.Shout(Word(text="bad"))
        assert isinstance(found, rpc.Err)
        assert found.error.code == "INVALID_ARGUMENT"
        assert [result.ok for result in words.Spell(Word(text="a?"))] == [True, False]


# What is around calls


def test_metadata_of_a_handshake_may_be_a_message() -> None:
    with (
        rpc.serve(
            [served()],
            codec="protobuf",
            validate=lambda metadata, *_: Word.FromString(metadata).text,
        ) as server,
        rpc.connect(
            server.url,
            codec="protobuf",
            metadata=lambda: Word(text="let me in").SerializeToString(),
            timeout=WAIT,
        ) as client,
    ):
        found = client.protobuf(WORDS).Shout(Word(text="whoami"))
    assert found.text == "shop.v1.Words Shout let me in"


def test_middleware_is_given_the_request() -> None:
    seen: list[tuple[str, str, Any]] = []

    def look(ctx: rpc.Context, init: Any, step: Callable[[], Any]) -> Any:
        seen.append((ctx.service, ctx.procedure, init))
        return step()

    with (
        rpc.serve([served()], middleware=[look]) as server,
        rpc.connect(server.url, timeout=WAIT) as client,
    ):
        words = client.protobuf(WORDS)
        assert words.Shout(Word(text="a")) == Word(text="A")
        assert words.Count().finish() == Number()
        assert list(words.Spell(Word(text="ab"))) == [Word(text="a"), Word(text="b")]
    assert seen == [
        ("shop.v1.Words", "Shout", Word(text="a")),
        ("shop.v1.Words", "Count", None),
        ("shop.v1.Words", "Spell", Word(text="ab")),
    ]


def test_services_of_both_routers_are_side_by_side() -> None:
    plain = rpc.Service("plain")

    @plain.rpc()
    def same(ctx: rpc.Context, init: Any) -> Any:
        return init

    with (
        rpc.serve([served(), plain], codec="protobuf", serve_schema=True) as server,
        rpc.connect(server.url, codec="protobuf", timeout=WAIT) as client,
    ):
        assert client.rpc("plain", "same", b"bytes") == b"bytes"
        assert client.protobuf(WORDS).Shout(Word(text="a")) == Word(text="A")
        assert failure(lambda: client.rpc("plain", "other", None)).code == "INVALID_REQUEST"


# Wrong use


def test_a_request_must_be_a_message_of_the_method(words: ProtobufStub) -> None:
    for request in (None, b"", {"text": "a"}, Number(value=1)):
        with pytest.raises(TypeError, match=r"Shout takes a message shop\.v1\.Word, not"):
            words.Shout(request)
    with pytest.raises(TypeError, match="Count takes several requests"):
        words.Count(Word())
    with words.Chat() as chat, pytest.raises(TypeError, match="Chat takes a message"):
        chat.write(b"")


def test_names_that_are_no_methods_are_told(client: rpc.Client) -> None:
    words = client.protobuf(WORDS)
    with pytest.raises(AttributeError, match="no method 'shout'; it has Chat, Count, Later"):
        words.shout(Word())
    with pytest.raises(AttributeError, match="has no attribute '_later'"):
        words._later(Word())
    assert "Shout" in dir(words)
    assert repr(words) == "<ProtobufStub shop.v1.Words>"
    assert repr(words.Count) == "<MethodProxy shop.v1.Words.Count: upload>"


@pytest.mark.parametrize("given", [None, "shop.v1.Words", Word, WORDS.file])
def test_a_service_is_given_as_its_descriptor(given: Any, client: rpc.Client) -> None:
    for use in (rpc.ProtobufService, client.protobuf):
        with pytest.raises(TypeError, match="given as its descriptor, such as"):
            use(given)


def test_handlers_are_those_of_methods() -> None:
    words = served()
    with pytest.raises(ValueError, match=r"shop\.v1\.Words has no method 'shout'"):
        words.method(name="shout")(lambda ctx, request: request)
    with pytest.raises(ValueError, match=r"shop\.v1\.Words\.Shout is defined twice"):
        words.method(name="Shout")(lambda ctx, request: request)
    with pytest.raises(ValueError, match=r"is of kind upload: its handler must take \(ctx, req"):
        rpc.ProtobufService(WORDS).method(name="Count")(lambda ctx: None)
    with pytest.raises(TypeError, match=r"@service\.method\(\)"):
        words.method(lambda ctx, request: request)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="methods of protobuf"):
        words.rpc()(lambda ctx, init: init)


def test_the_codes_are_those_of_grpc_that_are_errors() -> None:
    assert len(CODES) == 16
    assert "OK" not in CODES


# Without a client


class TestCall:
    @pytest.fixture(params=["json", "msgpack", "protobuf"])
    def call(self, request: pytest.FixtureRequest) -> Callable[..., Any]:
        return partial(testing.call, served(), codec=request.param)

    def test_each_kind_returns_messages(self, call: Callable[..., Any]) -> None:
        several = [Word(text="a"), Word(text="b")]
        assert call("Shout", Word(text="hello")) == Word(text="HELLO")
        assert call("Spell", Word(text="ab")) == several
        assert call("Count", requests=several) == Number(value=2)
        assert call("Chat", requests=several) == [Word(text="A"), Word(text="B")]
        assert call("Count") == Number(value=0)

    def test_what_a_handler_is_given_is_as_for_other_services(
        self, call: Callable[..., Any]
    ) -> None:
        told = call("Shout", Word(text="whoami"), metadata="given", state={})
        assert told == Word(text=f"{WORDS.full_name} Shout given")

    @pytest.mark.parametrize("text", ["bad", "cancel"])
    def test_an_error_is_that_of_a_client(self, call: Callable[..., Any], text: str) -> None:
        error = failure(lambda: call("Shout", Word(text=text)))
        code = {"bad": "INVALID_ARGUMENT", "cancel": "CANCEL"}[text]
        assert (error.code, error.extra) == (code, NAMES if text == "bad" else None)

    def test_an_error_among_responses_stands_there(self, call: Callable[..., Any]) -> None:
        first, second = call("Spell", Word(text="a?"))
        assert first == Word(text="a")
        assert (type(second), second.error.code) == (rpc.Err, "OUT_OF_RANGE")

    @pytest.mark.parametrize(
        ("procedure", "text", "raised"),
        [("Shout", "fail", KeyError), ("Spell", "a!", RuntimeError)],
    )
    def test_what_a_handler_raises_is_raised(
        self, call: Callable[..., Any], procedure: str, text: str, raised: type[Exception]
    ) -> None:
        with pytest.raises(raised):
            call(procedure, Word(text=text))

    def test_an_undeclared_error_is_raised_too(self, call: Callable[..., Any]) -> None:
        assert failure(lambda: call("Shout", Word(text="undeclared"))).code == "OURS"

    def test_a_response_that_is_no_message_is_refused(self, call: Callable[..., Any]) -> None:
        assert failure(lambda: call("Shout", Word(text="bytes"))).code == "UNCAUGHT_ERROR"

    def test_other_messages_are_refused_before_the_call(self, call: Callable[..., Any]) -> None:
        with pytest.raises(TypeError, match="Shout takes a message .*Word, not NoneType"):
            call("Shout")
        with pytest.raises(TypeError, match="Chat takes a message .*Word, not Number"):
            call("Chat", requests=[Number(value=1)])
        with pytest.raises(TypeError, match="Count takes several requests, and no init"):
            call("Count", Word(text="a"))

    def test_a_method_without_a_handler_is_none(self, call: Callable[..., Any]) -> None:
        with pytest.raises(KeyError):
            call("Missing")
