"""Rpcs that are started, and waited for later or never."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsmux import rpc

from ..helpers.inside import end_time_of
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.waiting import wait_for


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def server(gate: Gate) -> Iterator[rpc.RpcServer]:
    with rpc.serve([offered(gate)]) as server:
        yield server


@pytest.fixture
def client(server: rpc.RpcServer) -> Iterator[rpc.Client]:
    with rpc.connect(server.url) as client:
        yield client


def test_submit_returns_before_the_answer_and_result_waits_for_it(
    client: rpc.Client, gate: Gate
) -> None:
    call = client.submit("test", "hangs", None)
    assert gate.entered.wait(WAIT)
    assert not call.done()
    assert "pending" in repr(call)
    gate.opened.set()
    assert call.result(WAIT) is None
    assert call.done()
    assert "done" in repr(call)


def test_results_may_be_fetched_in_any_order_and_again(client: rpc.Client) -> None:
    calls = [client.submit("test", "same", number) for number in range(50)]
    assert [call.result(WAIT) for call in reversed(calls)] == list(reversed(range(50)))
    assert calls[7].result() == 7


def test_threads_may_wait_for_one_result_together(client: rpc.Client, gate: Gate) -> None:
    call = client.submit("test", "hangs", None)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(call.result, WAIT) for _ in range(4)]
        assert gate.entered.wait(WAIT)
        gate.opened.set()
        assert [each.result(WAIT) for each in waiting] == [None] * 4


def test_an_error_is_raised_by_result_each_time_anew(client: rpc.Client) -> None:
    call = client.submit("test", "fails", "declared")
    raised = []
    for _ in range(2):
        with pytest.raises(rpc.RiverError, match="BAD: as declared") as caught:
            call.result(WAIT)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert raised[0].extra == [1]


def test_results_are_values_for_a_client_that_asked_for_them(server: rpc.RpcServer) -> None:
    with rpc.connect(server.url, errors="results") as client:
        good, bad = client.submit_many("test", "fails", ["neither", "declared"])
        assert not good.result(WAIT).ok
        assert bad.result(WAIT).error.code == "BAD"
        assert client.submit("test", "same", 1).result(WAIT) == rpc.Ok(1)


def test_a_wait_that_is_given_up_leaves_the_call_alone(client: rpc.Client, gate: Gate) -> None:
    call = client.submit("test", "hangs", None)
    with pytest.raises(TimeoutError, match="the call continues"):
        call.result(0.001)
    gate.opened.set()
    assert call.result(WAIT) is None


def test_the_time_of_a_call_cancels_it(client: rpc.Client, gate: Gate) -> None:
    call = client.submit("test", "hangs", None, timeout=WAIT)
    assert gate.entered.wait(WAIT)
    end_time_of(call)
    with pytest.raises(TimeoutError, match="was cancelled"):
        call.result()
    assert gate.over.wait(WAIT), "the server was not told"
    with pytest.raises(TimeoutError, match="was cancelled"):
        call.result()


def test_a_call_expires_when_its_time_is_over_and_not_before(client: rpc.Client) -> None:
    endless, long = client.submit("test", "hangs", None), client.submit("test", "hangs", None, WAIT)
    assert (endless.remaining(), endless.expire()) == (None, False)
    assert 0 < (long.remaining() or 0) <= WAIT
    assert not long.expire()
    short = client.submit("test", "hangs", None, 0.001)
    wait_for(short.expire)
    assert short.done()
    assert short.remaining() == 0


def test_an_answer_that_came_stays_although_time_is_over(client: rpc.Client) -> None:
    call = client.submit("test", "same", "kept", timeout=WAIT)
    wait_for(call.done)
    end_time_of(call)
    assert call.expire()
    assert call.result() == "kept"


def test_a_call_tells_what_it_has_sent_and_got(client: rpc.Client) -> None:
    call = client.submit("test", "same", "x" * 1000)
    call.result(WAIT)
    assert 1000 < call.sent < 1100
    assert call.sent < call.size < 1400


def test_cancelling_tells_the_server_and_ends_the_call_once(client: rpc.Client, gate: Gate) -> None:
    call = client.submit("test", "hangs", None)
    assert gate.entered.wait(WAIT)
    assert call.cancel("not wanted")
    assert not call.cancel()
    assert gate.over.wait(WAIT)
    with pytest.raises(rpc.RiverError, match="CANCEL: not wanted"):
        call.result()


def test_an_answered_call_cannot_be_cancelled(client: rpc.Client) -> None:
    call = client.submit("test", "same", "kept")
    assert call.result(WAIT) == "kept"
    wait_for(lambda: call.over)
    assert not call.cancel()
    assert call.result() == "kept"


def test_what_cannot_be_carried_is_raised_by_submit(client: rpc.Client) -> None:
    with pytest.raises(rpc.EncodeError):
        client.submit("test", "same", object())
    with pytest.raises(rpc.EncodeError):
        client.submit("test", "\ud800", 1)
    assert client.submit("test", "same", 1).result(WAIT) == 1


def test_of_many_only_those_fail_that_cannot_be_carried(client: rpc.Client) -> None:
    first, bad, last = client.submit_many("test", "same", [1, object(), 3])
    with pytest.raises(rpc.EncodeError):
        bad.result(WAIT)
    assert (first.result(WAIT), last.result(WAIT)) == (1, 3)


def test_a_value_that_is_too_large_fails_alone(server: rpc.RpcServer) -> None:
    size = 16 * 1024
    with rpc.connect(server.url, options=rpc.Options(max_size=size)) as client:
        small, large = client.submit_many("test", "same", ["x", "x" * size])
        with pytest.raises(rpc.EncodeError):
            large.result(WAIT)
        assert small.result(WAIT) == "x"


def test_many_keep_their_order_at_the_server(client: rpc.Client) -> None:
    calls = client.submit_many("test", "same", range(500))
    assert [call.result(WAIT) for call in calls] == list(range(500))


def test_how_many_are_pending_is_for_the_caller_to_say(server: rpc.RpcServer) -> None:
    """The server answers the first while it has not got the last."""
    options = rpc.Options(send_buffer_messages=2)
    with rpc.connect(server.url, options=options) as client:
        calls = client.submit_many("test", "same", range(500))
        assert [call.result(WAIT) for call in calls] == list(range(500))


def test_none_at_all_may_be_submitted(client: rpc.Client) -> None:
    assert client.submit_many("test", "same", []) == []


def test_closing_the_client_ends_what_is_pending(client: rpc.Client, gate: Gate) -> None:
    call = client.submit("test", "hangs", None)
    assert gate.entered.wait(WAIT)
    assert not client.closed
    client.close()
    assert client.closed
    with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
        call.result(WAIT)
    late = client.submit("test", "same", 1)
    with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT: the client is closed"):
        late.result(WAIT)


def test_a_procedure_that_ends_without_an_answer_fails(client: rpc.Client) -> None:
    call = client.submit("test", "count", 0)  # a subscription, taken for an rpc
    with pytest.raises(rpc.RiverError, match="ended without an answer"):
        call.result(WAIT)


def test_the_first_of_several_answers_counts(client: rpc.Client) -> None:
    call = client.submit("test", "count", 3)
    wait_for(lambda: call.over)
    assert call.result() == 0


# Completions


def test_completions_come_in_the_order_of_the_answers(client: rpc.Client, gate: Gate) -> None:
    ended = client.completions()
    (slow,) = client.submit_many("test", "hangs", [None], completions=ended)
    (quick,) = client.submit_many("test", "same", [1], completions=ended)
    assert ended.take(WAIT) == [quick]
    gate.opened.set()
    assert ended.take(WAIT) == [slow]


def test_completions_tell_of_errors_and_of_what_was_not_sent(client: rpc.Client) -> None:
    ended = client.completions()
    calls = client.submit_many("test", "fails", ["declared", object()], completions=ended)
    seen: list[rpc.PendingCall] = []
    while len(seen) < 2:
        seen += ended.take(WAIT)
    assert set(seen) == set(calls)


def test_waiting_for_completions_has_a_time(client: rpc.Client) -> None:
    with pytest.raises(TimeoutError, match="no call ended"):
        client.completions().take(0.001)


def test_a_thread_waits_for_completions(client: rpc.Client, gate: Gate) -> None:
    ended = client.completions()
    found: list[rpc.PendingCall] = []
    thread = threading.Thread(target=lambda: found.extend(ended.take(WAIT)))
    thread.start()
    calls = client.submit_many("test", "same", [1], completions=ended)
    thread.join(WAIT)
    assert found == calls
