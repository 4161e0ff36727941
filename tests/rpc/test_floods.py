"""Repetitions, floods, and what comes for calls that are over, at a server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.inside import orphans_of
from ..helpers.raw_peer import BINARY
from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.raw_river import CANCEL, CLOSE, CLOSED, OPEN, Fields, RawRiver, cancel
from ..helpers.rpc.standing_server import CALM, Stand, no_exceptions, stand
from ..helpers.waiting import wait_for

BEHIND = "reader fell behind: Options.unread_messages is 10"


@contextmanager
def narrow(**options: Any) -> Iterator[Stand]:
    """Serve with other options."""
    with stand("json", websocket=True, options=replace(CALM, **options)) as made:
        yield made


@pytest.fixture(scope="module")
def standing() -> Iterator[Stand]:
    with narrow(tombstones=5, unread_messages=10) as made:
        yield made


class TestRepetitions:
    def test_what_is_repeated_is_done_once(self, standing: Stand) -> None:
        with standing.attached() as (peer, _):
            call = standing.fresh("call")
            peer.open("s", "reads", call)
            for number in range(3):
                peer.send({"streamId": "s", "payload": number})
                for back in range(1, 4):
                    peer.send({"streamId": "s", "payload": "again", "seq": peer.seq - back})
                assert peer.recv()["payload"]["payload"] == number
            standing.finish(peer, "s")
            standing.check_lives(peer)
            assert standing.witness.notes[call].requests == [0, 1, 2]

    def test_a_second_gap_in_a_row_ends_the_session(self, standing: Stand) -> None:
        with standing.attached() as (peer, name):
            peer.send({"seq": peer.seq + 1})
            assert peer.recv_end() == 1000
            with standing.dial(name) as again:
                again.seq, again.ack = peer.seq, peer.ack
                again.attach(name)
                again.send({"seq": again.seq + 1})
                standing.check_destroyed(again, name)

    def test_a_gap_that_is_filled_is_forgotten(self, standing: Stand) -> None:
        with standing.attached() as (peer, name):
            for _ in range(3):
                peer.send({"seq": peer.seq + 1})
                assert peer.recv_end() == 1000
                again = standing.dial(name)
                again.seq, again.ack = peer.seq, peer.ack
                again.attach(name)
                peer.sock.close()
                peer = again
                peer.exchange("other", "filled")
            standing.check_lives(peer)
            peer.sock.close()

    @pytest.mark.parametrize(
        "late",
        [
            {"payload": CLOSE, "controlFlags": CLOSED},
            {"payload": cancel(), "controlFlags": CANCEL},
            {"payload": 1},
            {"payload": 1, "controlFlags": CLOSED},
        ],
        ids=["close", "cancel", "request", "last_request"],
    )
    def test_what_comes_for_a_call_that_is_over_is_refused_once(
        self, late: Fields, standing: Stand
    ) -> None:
        with standing.attached() as (peer, _):
            peer.open("s", "same", 1, CLOSED)
            standing.check_answered(peer, "s", 1)
            for _ in range(3):
                peer.send({"streamId": "s"} | late)
            standing.check_refused(peer, "s", "no call is open on stream s")
            standing.check_lives(peer)

    def test_refused_streams_are_remembered_up_to_a_number(self, standing: Stand) -> None:
        with standing.attached() as (peer, _):
            for number in range(6):
                peer.send({"streamId": f"s{number}"})
                standing.check_refused(peer, f"s{number}", "no call is open")
            peer.send({"streamId": "s5"})
            peer.send({"streamId": "s0"})  # forgotten
            standing.check_refused(peer, "s0", "no call is open")
            standing.check_lives(peer)

    def test_a_reader_that_falls_behind_is_cancelled(self, standing: Stand) -> None:
        with standing.attached() as (peer, _):
            call = standing.fresh("call")
            peer.open("s", "holds", call)
            assert standing.witness.notes[call].entered.wait(WAIT)
            for number in range(11):
                peer.send({"streamId": "s", "payload": number})
            fields = peer.recv()
            assert (fields["streamId"], fields["controlFlags"]) == ("s", CANCEL)
            assert fields["payload"]["payload"]["message"] == BEHIND
            standing.witness.notes[call].check_lost("ended")
            standing.check_lives(peer)


class TestFloods:
    def test_more_calls_than_allowed_are_refused(self, caplog: pytest.LogCaptureFixture) -> None:
        with (
            narrow(max_streams=4) as standing,
            no_exceptions(caplog),
            standing.attached() as (peer, _),
        ):
            for number in range(20):
                peer.open(f"s{number}", "holds", f"call-{number}")
            for number in range(3, 20):
                standing.check_refused(peer, f"s{number}", "more than 4 calls are open")
            for number in range(3):
                assert standing.witness.notes[f"call-{number}"].entered.wait(WAIT)
                cancelled = {"payload": cancel(), "controlFlags": CANCEL}
                peer.send({"streamId": f"s{number}"} | cancelled)
                standing.witness.notes[f"call-{number}"].check_lost("ended")
            wait_for(lambda: orphans_of(standing.server.handler, peer.own) == 0)
            peer.open("again", "same", 1, CLOSED)
            standing.check_answered(peer, "again", 1)
            standing.check_lives(peer)

    def test_calls_that_were_cancelled_count_while_their_handlers_run(self) -> None:
        with narrow(max_streams=4) as standing, standing.attached() as (peer, _):
            for number in range(3):
                peer.open(f"s{number}", "blocks", f"label-{number}", CLOSED)
                assert standing.witness.notes[f"label-{number}"].entered.wait(WAIT)
                cancelled = {"payload": cancel(), "controlFlags": CANCEL}
                peer.send({"streamId": f"s{number}"} | cancelled)
            peer.open("s", "same", 1, CLOSED)
            standing.check_refused(peer, "s", "more than 4 calls are open")
            standing.witness.block.set()
            wait_for(lambda: orphans_of(standing.server.handler, peer.own) == 0)
            standing.check_lives(peer)

    def test_a_handler_is_not_run_for_a_call_that_is_over(self) -> None:
        service = rpc.Service("test")
        done: list[Any] = []

        @service.rpc()
        def notes(ctx: rpc.Context, init: Any) -> None:
            done.append(init)
            if init == "first":
                ctx.ended.wait(WAIT)

        with (
            rpc.serve([service], workers=1, codec="json") as server,
            RawRiver.dial(server.port, "json", websocket=True) as peer,
        ):
            peer.attach("session")
            for label in ("first", "second", "third"):
                peer.open(label, "notes", label, CLOSED)
            for label in ("second", "first"):
                peer.send({"streamId": label, "payload": cancel(), "controlFlags": CANCEL})
            assert peer.recv()["streamId"] == "third"
            assert done == ["first", "third"]

    @pytest.mark.parametrize("what", ["unknown_streams", "unknown_procedures", "calls"])
    def test_answers_that_are_not_acknowledged_end_the_session(
        self, what: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They would be kept for ever."""
        with (
            narrow(send_buffer_messages=4) as standing,
            no_exceptions(caplog),
            standing.attached() as (peer, name),
            ThreadPoolExecutor(1) as pool,
        ):
            ends = pool.submit(received_until_the_end, peer)
            for number in range(100_000):
                if ends.done():
                    break
                stream = {"streamId": f"s{number}", "ack": 1}
                if what != "unknown_streams":
                    procedure = "same" if what == "calls" else "other"
                    names = {"serviceName": "test", "procedureName": procedure}
                    stream |= {"controlFlags": OPEN | CLOSED} | names
                with suppress(OSError):  # it has ended
                    peer.send(stream)
            assert ends.result(WAIT) < 1000
            standing.witness.notes[name].check_lost()


def received_until_the_end(peer: RawRiver) -> int:
    """Return how many messages come until the connection ends, in whatever way."""
    count = 0
    try:
        while peer.recv_frame()[0] == BINARY:
            count += 1
    except OSError:
        pass
    return count
