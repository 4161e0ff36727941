"""A recipe is a description; what it describes is made where it is asked for, once a process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.spark import Link, Recipe, SparkError, connection, connection_settings, error_from
from wsmux.spark import rpc as spark_rpc
from wsmux.spark.connection_settings import MOST_UNUSED, _links, retry_waits
from wsmux.testing import FaultProxy, Faults

from ..helpers.raw_peer import in_thread
from ..helpers.rpc.refusing import Refusing
from ..helpers.spark.servers import WAIT, Seen, offered
from ..helpers.tables import each_case
from ..helpers.waiting import wait_for

TOKEN = "sesame-open"
MIB = 1 << 20


def made_token() -> str:
    return TOKEN


def other_token() -> str:
    return TOKEN


@pytest.fixture
def server() -> Iterator[rpc.RpcServer]:
    with rpc.serve([offered(Seen())]) as server:
        yield server


def copy_of(recipe: Recipe) -> Recipe:
    copied: Recipe = pickle.loads(pickle.dumps(recipe))
    return copied


# The description


def test_a_recipe_does_nothing_by_itself(links: dict[Any, Any]) -> None:
    recipe = connection("ws://nowhere.invalid/")
    repr(recipe), hash(recipe), copy_of(recipe)
    assert links == {}


def test_a_recipe_pickles_as_its_arguments() -> None:
    recipe = connection("ws://h/", token=TOKEN, headers={"a": "b"}, retries=1, window=2**20)
    copied = copy_of(recipe)
    assert copied == recipe
    assert hash(copied) == hash(recipe)
    assert (copied.token, copied.headers, copied.retries) == (TOKEN, (("a", "b"),), 1)


def test_equal_arguments_make_equal_recipes() -> None:
    assert connection("ws://h/", metadata={"a": 1}) == connection("ws://h/", metadata={"a": 1})
    assert connection("ws://h/") != connection("ws://h/", retries=1)
    assert connection("ws://h/") != "ws://h/"


def test_functions_of_modules_make_equal_recipes() -> None:
    recipe = connection("ws://h/", token=made_token)
    assert copy_of(copy_of(recipe)) == connection("ws://h/", token=made_token) == recipe
    assert connection("ws://h/", metadata=made_token) != recipe
    assert connection("ws://h/", token=other_token) != recipe


def test_other_functions_make_recipes_that_are_equal_to_their_copies_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the same name there may be another one, with other values in it."""

    def inner() -> str:
        return TOKEN

    monkeypatch.setattr(made_token, "__module__", "__main__")
    functions: tuple[Any, ...] = (inner, lambda: TOKEN, TOKEN.lower, partial(str, TOKEN))
    for function in (*functions, made_token):
        recipe = connection("ws://h/", token=function)
        assert connection("ws://h/", token=function) != recipe
    bound = connection("ws://h/", token=TOKEN.lower)
    assert copy_of(copy_of(bound)) == bound


@pytest.mark.parametrize("token", [TOKEN, made_token])
def test_no_token_is_shown(token: Any) -> None:
    recipe = connection("ws://h/?key=hidden", token=token)
    assert repr(recipe) == "<Recipe ws://h/>"
    assert repr(recipe.link()) == "<Link ws://h/>"


@each_case
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"url": "http://h/"}, "expected a ws://"),
        ({"url": "ws:///path"}, "expected a ws://"),
        ({"url": "ws://me:pass@h/"}, "use token="),
        ({"codec": "xml"}, "codec must be"),
        ({"token": "a\nb"}, "without line breaks"),
        ({"headers": {"a": 1}}, "must be strings"),
        ({"token": "x", "headers": {"authorization": "y"}}, "exclude each other"),
        ({"connect_timeout": 0}, "connect_timeout must be above 0"),
        ({"call_timeout": -1}, "call_timeout must be above 0"),
        ({"retries": -1}, "must not be negative"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        connection(**{"url": "ws://h/"} | wrong)


def test_a_refused_argument_is_not_shown() -> None:
    with pytest.raises(ValueError, match="without line breaks") as caught:
        connection("ws://h/", token="secret\n")
    assert "secret" not in str(caught.value)


# One connection for each process


def test_copies_of_a_recipe_share_their_connections(server: rpc.RpcServer) -> None:
    recipe = connection(server.url)
    assert copy_of(recipe).client() is recipe.client()
    assert recipe.client().rpc("test", "same", 1, WAIT) == 1
    assert server.handler.sessions == 1


def test_threads_that_ask_at_once_get_the_same(server: rpc.RpcServer) -> None:
    recipe = connection(server.url)
    found: list[rpc.Client] = []
    threads = [threading.Thread(target=lambda: found.append(recipe.client())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_other_recipes_have_their_own(server: rpc.RpcServer) -> None:
    assert connection(server.url).client() is not connection(server.url, retries=1).client()


def test_a_closed_client_is_replaced(server: rpc.RpcServer) -> None:
    recipe = connection(server.url)
    recipe.client().close()
    assert recipe.client().rpc("test", "same", 1, WAIT) == 1


def connected(server: rpc.RpcServer) -> int:
    """Return how many clients have a connection."""
    return sum(session.connected for session in server.list_sessions())


def test_clients_of_settings_that_differ_each_time_do_not_add_up(server: rpc.RpcServer) -> None:
    """As of settings that each task makes with a function of its own."""
    for number in range(40):
        recipe = connection(server.url, metadata=lambda: None)
        assert recipe.client().rpc("test", "same", number, WAIT) == number
    wait_for(lambda: connected(server) <= MOST_UNUSED + 1)
    assert recipe.client().rpc("test", "same", 1, WAIT) == 1


def test_connections_for_streams_do_not_add_up_either(streams: wsmux.Server) -> None:
    for number in range(40):
        with connection(streams.url, token=f"token-{number}").open_stream("tail") as stream:
            assert stream.read()
    wait_for(lambda: len(streams.connections) <= MOST_UNUSED + 1)


def test_what_was_left_long_ago_is_closed_by_the_next_one(
    server: rpc.RpcServer, monkeypatch: pytest.MonkeyPatch, links: dict[Any, Any]
) -> None:
    clients = [connection(server.url, retries=number).client() for number in range(3)]
    monkeypatch.setattr(connection_settings, "UNUSED_FOR", 0.0)
    last = connection(server.url).client()
    wait_for(lambda: all(client.closed for client in clients))
    assert not last.closed
    assert len(links) == 1


def test_what_is_in_use_is_left_open(server: rpc.RpcServer, streams: wsmux.Server) -> None:
    stream = connection(streams.url).open_stream("tail")
    client = connection(server.url).client()
    kept = connection(server.url, retries=1).link()
    other = connection(server.url, token="a").client()
    with kept.in_use():
        idle = kept.client()
        call = client.submit("test", "slow", 1, WAIT)
        for number in range(2 * MOST_UNUSED):
            connection(server.url, token=f"b{number}").client()
            connection(streams.url, token=f"b{number}").streams()
        wait_for(lambda: other.closed)
        assert not idle.closed
        assert not client.closed
        assert not call.done()
        assert stream.read(1)
    client.close()


def test_a_link_that_was_closed_and_is_still_held_opens_again(
    server: rpc.RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_settings, "UNUSED_FOR", 0.0)
    recipe = connection(server.url)
    link = recipe.link()
    before = link.client()
    connection(server.url, retries=1).client()
    wait_for(lambda: before.closed)
    assert recipe.link() is link, "of two, one would never be closed"
    assert link.client().rpc("test", "same", 1, WAIT) == 1


def test_what_is_used_again_before_it_was_closed_has_another_connection(
    server: rpc.RpcServer, streams: wsmux.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing several takes its time, as one does of a server that is away."""
    recipe = connection(server.url)
    link, before = recipe.link(), recipe.client()
    with FaultProxy(streams.port) as proxy:
        connection(proxy.url, connect_timeout=2 * WAIT).streams()  # the newer is closed first
        proxy.set(down=Faults(latency=2 * WAIT))
        monkeypatch.setattr(connection_settings, "UNUSED_FOR", 0.0)
        connection(server.url, retries=1).client()
        again = link.client()
        assert not before.closed
        proxy.set(down=Faults())
        proxy.cut()
        wait_for(lambda: before.closed)
        assert again.rpc("test", "same", 1, WAIT) == 1


def test_a_link_for_once_is_not_kept(server: rpc.RpcServer, links: dict[Any, Any]) -> None:
    with connection(server.url).once() as link:
        client = link.client()
        assert client.rpc("test", "same", 1, WAIT) == 1
    assert client.closed
    assert links == {}


def test_a_forked_child_has_connections_of_its_own(server: rpc.RpcServer) -> None:
    recipe = connection(server.url)
    assert recipe.client().rpc("test", "same", 1, WAIT) == 1
    child = os.fork()
    if not child:
        status = 1
        try:
            fresh = not _links._held
            status = 0 if fresh and recipe.client().rpc("test", "same", 2, WAIT) == 2 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert recipe.client().rpc("test", "same", 3, WAIT) == 3


def test_importing_costs_little_and_needs_neither_spark_nor_arrow() -> None:
    program = (
        "import sys, wsmux.spark\n"
        "from wsmux.spark import connection, rpc, batched, ship, error_from\n"
        "rpc(connection('ws://h/'), 'a.b').columns('x', into='y', into_type='double')\n"
        "big = {'pyspark', 'pyarrow', 'pandas', 'numpy', 'flask', 'simple_websocket'}\n"
        "print(sorted(big & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=WAIT)
    assert done.stdout.decode() == "[]\n", done.stderr.decode()


# Who is let in


def token_server() -> Any:
    """Return a server that refuses whoever has not the token."""

    def validate(metadata: Any, previous: Any, client_id: str) -> Any:
        if metadata != {"token": TOKEN}:
            raise rpc.Rejection("who are you")
        return metadata

    return rpc.serve([offered(Seen())], validate=validate)


def test_metadata_is_what_the_handshake_carries() -> None:
    with token_server() as server:
        recipe = connection(server.url, metadata={"token": TOKEN})
        assert recipe.client().rpc("test", "same", 1, WAIT) == 1


def test_a_token_is_made_for_each_connection_and_sent_as_a_header() -> None:
    made = iter(("first", "second"))
    with wsmux.serve(lambda c: c.wait_closed()) as server:
        recipe = connection(server.url, token=lambda: next(made))
        one = recipe.streams()
        one.abort()
        assert recipe.streams() is not one
    assert list(made) == []


def test_a_token_that_cannot_be_made_is_told_without_its_text() -> None:
    def token() -> str:
        raise LookupError(TOKEN)

    recipe = connection("ws://127.0.0.1:1/", token=token, retries=0, connect_timeout=0.1)
    with pytest.raises(SparkError, match="token= failed with LookupError") as caught:
        recipe.streams()
    assert TOKEN not in str(caught.value)


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    made = Refusing()
    yield made
    made.close()


def test_a_refused_token_is_sent_and_told_and_not_tried_again(refusing: Refusing) -> None:
    recipe = connection(refusing.url, token=TOKEN, retry_backoff=0)
    with pytest.raises(SparkError, match=r"^\[UNAUTHORIZED\] connecting: .* 401") as caught:
        recipe.streams()
    assert len(refusing.requests) == 2  # the first was answered with 503
    assert all(f"Authorization: Bearer {TOKEN}" in request for request in refusing.requests)
    assert TOKEN not in str(caught.value)


def test_a_refused_token_fails_calls_at_once(refusing: Refusing) -> None:
    recipe = connection(refusing.url, token=TOKEN, retry_backoff=0)
    with pytest.raises(SparkError, match=r"^\[UNAUTHORIZED\] test.same: .* 401") as caught:
        list(spark_rpc(recipe, "test.same").rows()([1]))
    assert len(refusing.requests) == 2
    assert TOKEN not in str(caught.value)


def test_a_refused_handshake_is_told() -> None:
    with token_server() as server:
        recipe = connection(server.url, metadata={"token": "wrong"}, retries=1, retry_backoff=0)
        with pytest.raises(SparkError, match=r"UNEXPECTED_DISCONNECT.* who are you"):
            list(spark_rpc(recipe, "test.same").rows()([1]))


# Streams


def echo(stream: wsmux.Stream) -> None:
    line = b""
    while not line.endswith(b"\n"):
        line += stream.read(1)
    if b"refused" in line:
        stream.write(b'{"ok":false,"code":"NO_STREAM","message":"none of mine"}\n')
        return
    if b"silly" in line:
        stream.write(b"what?\n")
        return
    stream.write(b'{"ok":true,"rows":3}\n' + line)


@pytest.fixture
def streams() -> Iterator[wsmux.Server]:
    with wsmux.serve(stream_handler=echo) as server:
        yield server


def test_a_named_stream_begins_with_a_line_each_way(streams: wsmux.Server) -> None:
    with connection(streams.url).open_stream("tail", topic="t", start=5) as stream:
        assert stream.read() == b'{"stream":"tail","topic":"t","start":5}\n'


def test_the_first_line_is_returned_if_asked_for(streams: wsmux.Server) -> None:
    stream, reply = connection(streams.url).link().ask_stream("tail")
    with stream:
        assert reply == {"ok": True, "rows": 3}


def test_a_stream_without_a_name_has_no_lines(streams: wsmux.Server) -> None:
    with connection(streams.url).open_stream() as stream:
        stream.write(b"mine\n")
        stream.close_write()
        assert stream.read().endswith(b"mine\n")


def test_a_refused_stream_is_raised_with_the_server_s_code(streams: wsmux.Server) -> None:
    with pytest.raises(SparkError) as caught:
        connection(streams.url).open_stream("refused")
    error = caught.value
    assert (error.code, error.message, error.what) == (
        "NO_STREAM",
        "none of mine",
        "stream refused",
    )
    assert error_from(RuntimeError(f"SparkError: {error}")) is not None


def test_what_is_no_first_line_is_told_after_retries(streams: wsmux.Server) -> None:
    recipe = connection(streams.url, retries=1, retry_backoff=0)
    with pytest.raises(SparkError, match=r"NO_CONNECTION.*not JSON"):
        recipe.open_stream("silly")


def test_a_header_needs_a_name_and_has_a_bound(streams: wsmux.Server) -> None:
    recipe = connection(streams.url)
    with pytest.raises(ValueError, match="a header needs the name of a stream"):
        recipe.open_stream(topic="t")
    with pytest.raises(ValueError, match="at most"):
        recipe.open_stream("tail", text="x" * 70_000)


def test_a_lost_connection_is_made_anew_for_the_next_stream(streams: wsmux.Server) -> None:
    recipe = connection(streams.url, retry_backoff=0)
    first = recipe.streams()
    first.abort()
    wait_for(lambda: first.closed)
    with recipe.open_stream("tail") as stream:
        assert stream.read()
    assert recipe.streams() is not first


def test_a_stream_goes_on_behind_cuts_with_a_new_token_each_time() -> None:
    made: list[str] = []

    def token() -> str:
        made.append(f"token {len(made)}")
        return made[-1]

    data = os.urandom(3 * MIB)
    with (
        wsmux.serve(stream_handler=mirror, resume=True, token=made.__contains__) as server,
        FaultProxy(server.port) as proxy,
    ):
        recipe = connection(proxy.url, token=token, connect_timeout=WAIT)
        with recipe.open_stream() as stream:
            proxy.cut_after(MIB // 2, MIB, way="up")
            writing = in_thread(lambda: (stream.write(data), stream.close_write()))
            assert stream.read() == data
            writing.result(WAIT)
        assert not proxy.cutting
        assert recipe.streams().stats().reconnects == 2
        assert len(made) == 3
        recipe.link().close()


def mirror(stream: wsmux.Stream) -> None:
    while data := stream.read(65536):
        stream.write(data)
    stream.close_write()


def test_a_stream_whose_server_was_replaced_fails_at_once_and_the_next_one_does_not() -> None:
    with (
        wsmux.serve(stream_handler=mirror, resume=True) as server,
        wsmux.serve(stream_handler=mirror, resume=True) as other,
        FaultProxy(server.port) as proxy,
    ):
        link = connection(proxy.url, connect_timeout=10 * WAIT, retry_backoff=0).link()
        stream = link.open_stream()
        proxy.target = ("127.0.0.1", other.port)
        proxy.reset()
        with pytest.raises(wsmux.ResumeLost, match="does not have the session"):
            stream.read(1)
        with link.open_stream() as another:
            another.write(b"x")
            assert another.read(1) == b"x"
        link.close()


def test_a_server_that_stays_away_is_given_up_before_an_attempt_ends() -> None:
    with (
        wsmux.serve(stream_handler=mirror, resume=True) as server,
        FaultProxy(server.port) as proxy,
    ):
        link = connection(proxy.url, connect_timeout=2.0, retry_backoff=0, retries=0).link()
        stream = link.open_stream()
        proxy.refusing = True
        proxy.reset()
        with pytest.raises(wsmux.ResumeLost, match="no connection for 1 s"):
            stream.read(1)
        with pytest.raises(SparkError, match="NO_CONNECTION"):
            link.open_stream("any")
        link.close()


def test_nobody_there_is_tried_again_and_then_told() -> None:
    """Each attempt has its time, of which the waits within it take a quarter at most."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    recipe = connection(
        "ws://127.0.0.1:1/?key=hidden", connect_timeout=2.0, retries=1, retry_backoff=0.05
    )
    start = time.monotonic()
    with pytest.raises(SparkError, match=r"NO_CONNECTION.*url=ws://127.0.0.1:1/") as caught:
        Link(recipe, pause).open_stream("tail")
    assert time.monotonic() - start > 2 * 1.5
    assert 0.025 <= pauses[0] <= 0.05 <= pauses[1] <= 0.1
    assert max(pauses) <= 0.5
    assert "refused" in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_an_attempt_without_time_hides_no_error_of_the_one_before() -> None:
    recipe = connection("ws://127.0.0.1:1", connect_timeout=1.0, retries=0, retry_backoff=0.01)
    with pytest.raises(SparkError, match="NO_CONNECTION.*refused"):
        Link(recipe, lambda seconds: time.sleep(1.1)).open_stream("tail")


@pytest.mark.parametrize("retry_backoff", [0, 0.01])
def test_a_server_that_comes_late_is_waited_for(retry_backoff: float) -> None:
    """It costs no repetition, of which there is none here."""
    with wsmux.serve(stream_handler=echo) as server:
        port = server.port
    servers: list[wsmux.Server] = []
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            servers.append(wsmux.serve(stream_handler=echo, port=port))

    recipe = connection(
        f"ws://127.0.0.1:{port}", connect_timeout=WAIT, retries=0, retry_backoff=retry_backoff
    )
    link = Link(recipe, pause)
    try:
        with link.open_stream("tail") as stream:
            assert stream.read()
    finally:
        link.close()
        for each in servers:
            each.shutdown(0)
    assert len(pauses) == 10
    assert all(0 < each <= 2.0 for each in pauses)


def test_waits_between_attempts_to_connect_are_no_shorter_than_wished() -> None:
    waits = retry_waits(connection("ws://h/", connect_timeout=10, retry_backoff=60))
    assert 30 <= waits.next() <= 60
    assert 30 <= waits.next() <= 60


def test_who_waits_for_another_thread_to_connect_has_its_own_time() -> None:
    """One thread is held in its attempt, for longer than the other waits."""
    asked, gate = threading.Event(), threading.Event()

    def token() -> str:
        asked.set()
        gate.wait(WAIT)
        return TOKEN

    with wsmux.serve(lambda c: c.wait_closed()) as server:
        recipe = connection(server.url, token=token, retries=0, connect_timeout=2.0)
        holding = threading.Thread(target=recipe.streams)
        holding.start()
        try:
            assert asked.wait(WAIT)
            with pytest.raises(SparkError, match=r"^\[TIMEOUT\] connecting: another thread"):
                recipe.streams()
        finally:
            gate.set()
            holding.join(WAIT)
        assert not recipe.streams().closed  # the other's
