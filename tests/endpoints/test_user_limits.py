"""What one user may do: connections at once, connections and streams a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import wsmux
from wsmux.endpoints import user_limits
from wsmux.endpoints.shared_limits import Answer
from wsmux.endpoints.user_limits import Users
from wsmux.testing import FaultProxy

from ..helpers.scripted import WAIT
from ..helpers.stream_outcomes import check_refusal
from ..helpers.waiting import wait_for
from ..helpers.wires import NAMES

Advance = Callable[[float], None]


@pytest.fixture(autouse=True)
def advance(monkeypatch: pytest.MonkeyPatch) -> Advance:
    """Let the time of these limits stand still; return what moves it on."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(user_limits, "clock", clock)

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def users(**limits: Any) -> Users:
    return Users(wsmux.UserLimits(**limits))


def refused(counts: Users, name: str = "ann") -> wsmux.HandshakeError:
    with pytest.raises(wsmux.HandshakeError) as caught:
        counts.enter(name)
    assert caught.value.status == 429
    return caught.value


def test_a_user_has_so_many_connections_and_another_has_as_many() -> None:
    counts = users(connections=2)
    places = [counts.enter("ann") for _ in range(2)]
    error = refused(counts)
    assert str(error) == "2 connections of this user are open; close some"
    assert error.retry_after == 5
    counts.enter("bob")
    for _ in range(2):
        places[0].leave()  # the second time it has none
    counts.enter("ann")
    refused(counts)


def test_connections_of_a_minute_may_come_at_once_and_then_one_by_one(advance: Advance) -> None:
    counts = users(connects_per_minute=7)  # by which a minute cannot be divided
    for _ in range(7):
        counts.enter("ann").leave()
    error = refused(counts)
    assert error.retry_after == pytest.approx(60 / 7)
    assert str(error) == "more than 7 connections in a minute; try again in 9 s"
    counts.enter("bob")
    for _ in range(3):
        advance(8.0)
        refused(counts)  # which does not put it off
        advance(60 / 7 - 8.0)
        counts.enter("ann").leave()
        refused(counts)
    advance(60.0)
    assert [counts.enter("ann").returns for _ in range(7)] == [False] * 7
    refused(counts)


def test_what_is_refused_for_its_place_takes_nothing_of_the_rate() -> None:
    counts = users(connections=1, connects_per_minute=2)
    first = counts.enter("ann")
    for _ in range(10):
        assert "of this user are open" in str(refused(counts))
    first.leave()
    counts.enter("ann")
    assert "in a minute" in str(refused(counts))


def test_a_client_may_return_to_its_own_where_no_place_is_free() -> None:
    counts = users(connections=1)
    first = counts.enter("ann", may_return=True)
    assert not first.returns
    again = counts.enter("ann", may_return=True)
    assert again.returns
    again.leave()  # it had none
    refused(counts)


def test_no_more_wait_to_return_than_a_few_for_each_connection() -> None:
    # A client that is silent about where it returns to would hold any number otherwise.
    counts = users(connections=2)
    held = [counts.enter("ann", may_return=True) for _ in range(6)]
    assert [each.returns for each in held] == [False] * 2 + [True] * 4
    with pytest.raises(wsmux.HandshakeError, match="of this user are open") as caught:
        counts.enter("ann", may_return=True)
    assert caught.value.status == 429
    for _ in range(2):
        held[-1].leave()  # the second time it has none
    assert counts.enter("ann", may_return=True).returns
    with pytest.raises(wsmux.HandshakeError):
        counts.enter("ann", may_return=True)
    for each in held:
        each.leave()
    assert not counts.enter("ann").returns


def test_who_has_returned_has_begun_nothing() -> None:
    counts = users(connects_per_minute=2)
    counts.enter("ann")
    for _ in range(20):
        counts.enter("ann", may_return=True).returned()
    counts.enter("ann")
    refused(counts)


def test_who_may_begin_no_more_may_still_return(advance: Advance) -> None:
    counts = users(connects_per_minute=1)
    counts.enter("ann")
    for _ in range(user_limits.RETURNS):
        place = counts.enter("ann", may_return=True)
        assert place.returns
        place.returned()
    with pytest.raises(wsmux.HandshakeError, match="in a minute; try again in 6 s") as caught:
        counts.enter("ann", may_return=True)
    assert (caught.value.status, caught.value.retry_after) == (429, pytest.approx(6.0))
    refused(counts)
    advance(6.0)
    assert counts.enter("ann", may_return=True).returns


def test_who_only_says_that_it_returns_is_counted() -> None:
    counts = users(connects_per_minute=2)
    for _ in range(2 + 2 * user_limits.RETURNS):
        counts.enter("ann", may_return=True).leave()  # its HELLO was refused
    with pytest.raises(wsmux.HandshakeError, match="in a minute"):
        counts.enter("ann", may_return=True)


def test_who_returns_more_often_than_that_begins_connections() -> None:
    counts = users(connects_per_minute=2)
    for _ in range(2 * user_limits.RETURNS):
        counts.enter("ann", may_return=True).returned()
    counts.enter("ann", may_return=True).returned()
    counts.enter("ann")
    refused(counts)


def test_what_is_refused_to_return_is_not_counted() -> None:
    counts = users(connections=1, connects_per_minute=1)
    held = [counts.enter("ann", may_return=True) for _ in range(3)]
    for _ in range(100):
        with pytest.raises(wsmux.HandshakeError, match="of this user are open"):
            counts.enter("ann", may_return=True)
    for each in held[1:]:
        each.leave()
    assert counts.enter("ann", may_return=True).returns


def test_streams_of_a_minute_are_of_all_connections_of_a_user(advance: Advance) -> None:
    counts = users(streams_per_minute=3)
    one, two, other = counts.enter("ann"), counts.enter("ann"), counts.enter("bob")
    taken = [place.take_stream() for place in (one, two, one, two, one)]
    assert taken == [True, True, True, False, False]
    assert other.take_stream()
    one.leave()
    two.leave()
    assert not counts.enter("ann").take_stream(), "leaving does not help"
    advance(20.0)
    assert [counts.enter("ann").take_stream() for _ in range(2)] == [True, False]


def test_without_limits_nobody_is_refused_and_nobody_remembered() -> None:
    counts = users()
    places = [counts.enter("ann") for _ in range(1000)]
    assert all(place.take_stream() for place in places)
    for place in places:
        place.leave()
    assert len(counts) == 0


def test_who_comes_and_goes_is_one_entry_and_soon_none(advance: Advance) -> None:
    counts = users(connects_per_minute=1_000_000)
    for _ in range(1000):
        counts.enter("ann").leave()
    assert len(counts) == 1
    advance(60.0)
    counts.enter("bob").leave()
    assert len(counts) == 1, "ann has her whole minute again, and is forgotten"


def test_no_more_users_are_remembered_than_allowed_and_nobody_is_shut_out() -> None:
    counts = users(connections=1, connects_per_minute=1, max_users=10)
    here = [counts.enter(f"here {number}") for number in range(20)]
    for number in range(100):
        counts.enter(f"gone {number}").leave()
    assert len(counts) == 20 + 10
    refused(counts, "gone 99")
    refused(counts, "here 0")  # whoever is connected is not forgotten
    counts.enter("gone 0").leave()  # the longest ago, and so as new
    for place in here:
        place.leave()
    assert len(counts) == 10


@pytest.mark.parametrize(
    ("one", "other"), [("a:b", "a"), ("a b", "a\tb"), ("a\x00", "a"), ("é", "e\u0301")]
)
def test_names_that_look_alike_are_two_users(one: str, other: str) -> None:
    counts = users(connections=1, connects_per_minute=1)
    counts.enter(one)
    counts.enter(other)


def test_a_forked_child_counts_anew() -> None:
    counts = users(connections=1)
    place = counts.enter("ann")
    counts.forked()
    counts.enter("ann")
    place.leave()
    refused(counts)


def test_what_is_no_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsmux.server.listen", lambda *_: pytest.fail("the port is taken"))
    with pytest.raises(TypeError, match=r"user_limits must be a wsmux.UserLimits, .* not dict$"):
        Users({"connections": 5})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="user_limits= needs authorize="):
        wsmux.serve(lambda connection: None, user_limits=wsmux.UserLimits(connections=1))
    with pytest.raises(TypeError, match="user_limits must be a wsmux.UserLimits"):
        wsmux.serve(idle, authorize=by_header, user_limits={})  # type: ignore[arg-type]


# On the wire


def by_header(request: wsmux.Request) -> str:
    return request.headers["x-user"]


def idle(connection: wsmux.Connection) -> None:
    connection.wait_closed()


def echo(stream: wsmux.Stream) -> None:
    stream.write(stream.read())


@pytest.mark.parametrize("protocol", NAMES)
def test_a_stream_too_many_is_refused_in_each_wire(protocol: str) -> None:
    limits = wsmux.UserLimits(streams_per_minute=2)
    options: dict[str, Any] = {"protocols": [protocol], "authorize": by_header}
    with wsmux.serve(stream_handler=echo, user_limits=limits, **options) as server:

        def connect(name: str) -> wsmux.Connection:
            return wsmux.connect(server.url, protocol=protocol, headers={"X-User": name})

        def ask(connection: wsmux.Connection) -> bytes:
            with connection.open_stream(WAIT) as stream:
                stream.timeout = WAIT
                stream.write(b"hello")
                stream.close_write()
                return stream.read()

        with connect("ann") as one, connect("ann") as two, connect("bob") as other:
            assert [ask(one), ask(two)] == [b"hello", b"hello"]
            beyond = one.open_stream(WAIT)
            beyond.timeout = WAIT
            check_refusal(beyond)
            assert ask(other) == b"hello"
            wait_for(lambda: sum(each.stats().streams_refused for each in server.connections) == 1)
            assert not one.closed


def test_a_server_refuses_a_connection_too_many_before_the_upgrade() -> None:
    limits = wsmux.UserLimits(connections=1)
    with wsmux.serve(idle, authorize=by_header, user_limits=limits) as server:

        def connect(name: str) -> wsmux.Connection:
            return wsmux.connect(server.url, timeout=WAIT, headers={"X-User": name})

        with connect("ann"), connect("bob"):
            with pytest.raises(wsmux.HandshakeError, match="of this user are open") as caught:
                connect("ann")
            assert (caught.value.status, caught.value.retry_after) == (429, 5.0)
        # Each place is free when the server has seen the end.
        wait_for(lambda: not server.connections)
        wait_for(lambda: connects(connect))


ANN = {"X-User": "ann"}


@contextmanager
def resumed_often(limits: wsmux.UserLimits, times: int) -> Iterator[wsmux.Server]:
    """Yield a server whose only client has resumed so often."""
    options: dict[str, Any] = {"authorize": by_header, "user_limits": limits, "resume": True}
    with (
        wsmux.serve(stream_handler=echo, **options) as server,
        FaultProxy(server.port) as proxy,
        wsmux.connect(proxy.url, timeout=WAIT, headers=ANN, resume=True) as connection,
    ):
        for count in range(1, times + 1):
            proxy.reset()
            wait_for(lambda count=count: connection.stats().reconnects == count)
        yield server


def test_a_client_of_a_server_resumes_without_a_second_place() -> None:
    with resumed_often(wsmux.UserLimits(connections=1), 2) as server:
        for resume in (True, False):
            with pytest.raises(wsmux.HandshakeError, match="of this user are open") as caught:
                wsmux.connect(server.url, timeout=WAIT, headers=ANN, resume=resume)
            assert caught.value.status == 429
        assert [each.user for each in server.connections] == ["ann"]


def test_a_client_of_a_server_resumes_as_often_as_it_is_cut() -> None:
    with resumed_often(wsmux.UserLimits(connects_per_minute=1), 3) as server:
        for resume in (True, False):
            with pytest.raises(wsmux.HandshakeError, match="1 connections in a minute") as caught:
                wsmux.connect(server.url, timeout=WAIT, headers=ANN, resume=resume)
            assert caught.value.status == 429


def connects(connect: Callable[[str], wsmux.Connection]) -> bool:
    try:
        connect("ann").close()
    except wsmux.HandshakeError:
        return False
    return True


class Shared:
    """Other processes, which give one answer, and count what is given back."""

    def __init__(self, answer: Answer | None) -> None:
        self.answer = answer
        self.given_back = 0

    def enter(self, user: str, may_return: bool) -> tuple[str, Answer | None]:
        return "an id", self.answer

    def leave(self, user: str, connection: str) -> None:
        """Forget a connection."""

    def give_back(self, user: str) -> None:
        self.given_back += 1


@pytest.mark.parametrize(
    ("answer", "given_back"),
    [(None, 0), (Answer("in", 0.0), 1), (Answer("returns", 0.0), 1), (Answer("often", 5.0), 0)],
    ids=lambda value: getattr(value, "verdict", str(value)),
)
def test_what_other_processes_have_not_taken_is_not_given_back(
    answer: Answer | None, given_back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, shared = users(connections=9, connects_per_minute=3), Shared(answer)
    monkeypatch.setattr(counts, "_shared", shared)
    place = counts.enter("ann", may_return=True)
    for _ in range(2):  # the second time there is nothing
        place.returned()
    assert shared.given_back == given_back


def test_a_client_without_a_name_is_not_counted() -> None:
    limits = wsmux.UserLimits(connections=1, connects_per_minute=1, streams_per_minute=1)
    options: dict[str, Any] = {"authorize": lambda request: True, "user_limits": limits}
    with (
        wsmux.serve(stream_handler=echo, **options) as server,
        wsmux.connect(server.url, timeout=WAIT),
        wsmux.connect(server.url, timeout=WAIT),
    ):
        wait_for(lambda: len(server.connections) == 2)
