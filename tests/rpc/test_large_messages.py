"""Messages above ``Options.max_size``: each costs its own call, and the worst of them a session."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc.wire.json_codec import codec_of

from ..helpers.rpc.clients import session_of
from ..helpers.rpc.four_kinds import (
    KINDS,
    Gathered,
    Part,
    answer,
    begun,
    check_caller,
    staged,
)
from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.raw_river import (
    CANCEL,
    CLOSED,
    OPEN,
    Fields,
    RawRiver,
    RawServer,
    cancel,
    ok,
)
from ..helpers.rpc.standing_server import CALM, Stand, no_exceptions, stand
from ..helpers.waiting import wait_for

SMALL = 16 * 1024
LIMITED = replace(CALM, max_size=SMALL)

# Bytes of the longest message that is taken, and of the longest that is read.
TAKEN, READ = SMALL + 64 * 1024, 4 * SMALL + 64 * 1024

LARGE = "x" * TAKEN
SENTENCE = (
    rf"a message of \d+ bytes is above the receiver's Options.max_size, {SMALL}: "
    "send it in parts, or raise max_size at both ends"
)

WAYS = [
    pytest.param((codec, websocket), id=f"{codec}-{'websocket' if websocket else 'tcp'}")
    for codec in ("json", "msgpack")
    for websocket in (True, False)
]


@pytest.fixture(scope="module", params=WAYS)
def standing(request: pytest.FixtureRequest) -> Iterator[Stand]:
    codec, websocket = request.param
    with stand(codec, websocket=websocket, options=LIMITED) as made:
        yield made


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what went to the log that a user has to look at."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info]


class TestAtAServer:
    @pytest.fixture
    def attached(
        self, standing: Stand, caplog: pytest.LogCaptureFixture
    ) -> Iterator[tuple[RawRiver, str]]:
        with no_exceptions(caplog), standing.attached() as attached:
            yield attached

    def check_told(self, peer: RawRiver, stream: str) -> None:
        fields = peer.recv()
        assert (fields["streamId"], fields["controlFlags"]) == (stream, CANCEL)
        error = fields["payload"]["payload"]
        assert error["code"] == "INVALID_REQUEST"
        assert f"Options.max_size, {SMALL}: send it in parts" in error["message"]

    @pytest.mark.parametrize("flags", [0, CLOSED])
    def test_a_request_ends_its_call_alone(
        self, flags: int, standing: Stand, attached: tuple[RawRiver, str]
    ) -> None:
        peer, _ = attached
        call = standing.fresh("call")
        peer.open("s", "reads", call)
        peer.send({"streamId": "s", "payload": 1})
        assert peer.recv()["payload"] == ok(1)
        peer.send({"streamId": "s", "payload": LARGE, "controlFlags": flags})
        self.check_told(peer, "s")
        standing.witness.notes[call].check_lost("INVALID_REQUEST")
        assert "above the receiver's Options.max_size" in standing.witness.notes[call].message
        assert standing.witness.notes[call].requests == [1]
        standing.check_lives(peer)

    @pytest.mark.parametrize("procedure", ["same", "unknown"])
    def test_an_init_opens_nothing(
        self, procedure: str, standing: Stand, attached: tuple[RawRiver, str]
    ) -> None:
        peer, _ = attached
        for _ in range(2):
            peer.open("s", procedure, [LARGE, {"$t": 1}], CLOSED)
        self.check_told(peer, "s")  # once
        standing.check_lives(peer)

    def test_a_message_of_no_call_is_refused_as_any(
        self, standing: Stand, attached: tuple[RawRiver, str]
    ) -> None:
        peer, _ = attached
        peer.send({"streamId": "none", "payload": LARGE})
        standing.check_refused(peer, "none", "no call is open on stream none")
        standing.check_lives(peer)

    def test_a_cancellation_cancels(self, standing: Stand, attached: tuple[RawRiver, str]) -> None:
        peer, _ = attached
        call = standing.fresh("call")
        peer.open("s", "gather", call)
        assert standing.witness.notes[call].entered.wait(WAIT)
        reason = cancel(message=LARGE)
        peer.send({"streamId": "s", "payload": reason, "controlFlags": CANCEL})
        standing.witness.notes[call].check_lost("CANCEL")
        standing.check_lives(peer)

    def test_it_is_counted_and_a_repetition_dropped(
        self, standing: Stand, attached: tuple[RawRiver, str]
    ) -> None:
        peer, _ = attached
        peer.send({"streamId": "none", "payload": LARGE})
        standing.check_refused(peer, "none", "no call is open")
        peer.send({"streamId": "again", "payload": LARGE, "seq": peer.seq - 1})
        peer.send({"streamId": "again", "payload": LARGE, "seq": 0})
        peer.exchange("other", "counted")
        standing.check_lives(peer)

    @pytest.mark.parametrize("size", [TAKEN + 1, READ])
    def test_many_of_them_change_nothing(
        self, size: int, standing: Stand, attached: tuple[RawRiver, str]
    ) -> None:
        peer, _ = attached
        for _ in range(20):
            stream = standing.fresh("s")
            fields = peer.fields({"streamId": stream, "controlFlags": OPEN, "payload": ""})
            fill = "x" * (size - len(peer.pack(fields | {"payload": "x" * 2**16})) + 2**16)
            assert len(peer.pack(fields | {"payload": fill})) == size
            peer.send(fields | {"payload": fill})
            self.check_told(peer, stream)
        standing.check_lives(peer)

    def test_one_that_is_no_message_ends_the_session(
        self, standing: Stand, attached: tuple[RawRiver, str]
    ) -> None:
        peer, name = attached
        peer.send({"streamId": "other", "payload": LARGE, "controlFlags": "none"})
        standing.check_destroyed(peer, name)

    def test_one_for_new_metadata_ends_the_session(
        self, standing: Stand, attached: tuple[RawRiver, str]
    ) -> None:
        peer, name = attached
        peer.send({"streamId": "rehandshake", "payload": LARGE})
        standing.check_destroyed(peer, name)

    def test_a_handshake_may_be_no_longer_than_what_is_taken(self, standing: Stand) -> None:
        with standing.dial(standing.fresh("raw")) as peer:
            peer.announce(TAKEN + 1)
            assert peer.recv_end() == too_big(peer)
        with standing.dial(name := standing.fresh("raw")) as peer:
            peer.attach(name, {"metadata": "x" * (TAKEN - 1000)})


def too_big(peer: RawRiver) -> int:
    """Return what a connection ends with over a message that nobody reads."""
    return 1009 if peer.websocket else peer.clean


class TestBeyondWhatIsRead:
    """The connection ends, and with the second one in a row the session."""

    def again(self, standing: Stand, peer: RawRiver, name: str) -> RawRiver:
        """Come back with the session, as a peer does that lost its connection."""
        again = standing.dial(name)
        again.seq, again.ack = peer.seq, peer.ack
        again.attach(name)
        peer.sock.close()
        return again

    def test_the_second_in_a_row_ends_the_session(
        self, standing: Stand, caplog: pytest.LogCaptureFixture
    ) -> None:
        with standing.attached() as (peer, name):
            peer.announce(READ + 1)
            assert peer.recv_end() == too_big(peer)
            assert logged(caplog) == []
            again = self.again(standing, peer, name)
            again.announce(READ + 1)
            standing.check_destroyed(again, name, too_big(peer), "a message that was too large")
            again.sock.close()
        expected = ["invalid_message", "invalid_message", "handshake_failed"]
        wait_for(lambda: standing.told[-3:] == expected)
        (line,) = logged(caplog)
        assert line.startswith(f"the session of client '{name}' has ended: ")
        assert f"message of {'at least ' if standing.websocket else ''}{READ + 1} bytes" in line
        assert f"raise Options.max_size at both ends, which is {SMALL} here" in line

    def test_a_session_with_nothing_before_them_is_not_begun_again(
        self, standing: Stand, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its counters are those of a new one, so that its client would send the same for ever."""
        name = standing.fresh("raw")
        for _ in range(2):
            with standing.dial(name) as peer:
                peer.attach(name)
                peer.announce(READ + 1)
                assert peer.recv_end() == too_big(peer)
        with standing.dial(name) as peer:
            peer.hello(name)
            status = peer.status()
            assert (status["ok"], status["code"]) == (False, "SESSION_STATE_MISMATCH")
            assert status["reason"] == "the session has ended over a message that was too large"
        with standing.dial(name) as peer:
            peer.attach(standing.fresh("session"))
        assert len(logged(caplog)) == 1

    def test_one_message_in_between_makes_it_a_first_one(
        self, standing: Stand, caplog: pytest.LogCaptureFixture
    ) -> None:
        with no_exceptions(caplog), standing.attached() as (peer, name):
            for _ in range(3):
                peer.announce(READ + 1)
                assert peer.recv_end() == too_big(peer)
                peer = self.again(standing, peer, name)
                peer.exchange("other", "filled")
            standing.check_lives(peer)
            peer.sock.close()

    def test_a_new_connection_while_the_old_one_ends_is_another(
        self, standing: Stand, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The old one's closing handshake still goes on; that it failed was noted before."""
        with standing.attached() as (peer, name):
            peer.announce(READ + 1)
            if peer.websocket:
                assert peer.recv_frame()[0] == 8  # not answered
            else:
                assert peer.recv_end() == peer.clean
            with standing.dial(name) as again:
                again.seq, again.ack = peer.seq, peer.ack
                again.attach(name)
                again.announce(READ + 1)
                standing.check_destroyed(again, name, too_big(peer), "a message that was too large")
        assert len(logged(caplog)) == 1


@contextmanager
def scripted(codec: str, websocket: bool) -> Iterator[tuple[rpc.Client, RawServer, Gathered]]:
    """Yield a client of a server by hand, and what the client hears of failures."""
    told = Gathered()
    with (
        RawServer(codec, websocket=websocket) as server,
        rpc.connect(
            server.url,
            codec=codec,
            options=replace(LIMITED, backoff_base=0.0, backoff_jitter=0.01),
            on_protocol_error=lambda *what: told(what[:2]),
        ) as client,
    ):
        yield client, server, told


@pytest.mark.parametrize("way", WAYS)
class TestAtAClient:
    @pytest.fixture(autouse=True)
    def brief_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the client not wait long for a server by hand that answers no Close."""
        monkeypatch.setattr("wsmux.rpc.engine.dial.CLOSE_TIMEOUT", 0.1)

    @pytest.mark.parametrize("flags", [0, CLOSED])
    def test_a_response_ends_its_call_alone(
        self, flags: int, way: tuple[str, bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        with no_exceptions(caplog), scripted(*way) as (client, server, told):
            small, large = client.submit_many("test", "same", [1, 2])
            with server.attached() as raw:
                streams = [raw.recv()["streamId"] for _ in range(2)]
                raw.send({"streamId": streams[1], "payload": ok(LARGE), "controlFlags": flags})
                with pytest.raises(rpc.RiverError, match=SENTENCE) as caught:
                    large.result(WAIT)
                assert caught.value.code == "CANCEL"
                check_cancelled(raw, streams[1])
                raw.send({"streamId": streams[0], "payload": ok(1), "controlFlags": CLOSED})
                assert small.result(WAIT) == 1
                client.close()
            assert told.said == []

    def test_it_is_an_error_of_the_reader_and_the_writer(self, way: tuple[str, bool]) -> None:
        with scripted(*way) as (client, server, _):
            call = client.stream("test", "echo", None, WAIT)
            with server.attached() as raw:
                stream = raw.recv()["streamId"]
                raw.send({"streamId": stream, "payload": ok("small")})
                raw.send({"streamId": stream, "payload": ok(LARGE)})
                assert call.read(WAIT) == "small"
                check_caller(call, f"CANCEL: {SENTENCE}")
                check_cancelled(raw, stream)
                client.close()

    def test_a_cancellation_cancels_and_is_not_answered(self, way: tuple[str, bool]) -> None:
        with scripted(*way) as (client, server, _):
            cancelled = client.submit("test", "same", 1)
            with server.attached() as raw:
                stream = raw.recv()["streamId"]
                reason = cancel(message=LARGE)
                raw.send({"streamId": stream, "payload": reason, "controlFlags": CANCEL})
                with pytest.raises(rpc.RiverError, match=f"CANCEL: {SENTENCE}"):
                    cancelled.result(WAIT)
                again = client.submit("test", "same", 2)
                fields = raw.recv()
                assert fields["controlFlags"] == OPEN | CLOSED
                raw.send({"streamId": fields["streamId"], "payload": ok(2), "controlFlags": CLOSED})
                assert again.result(WAIT) == 2
                client.close()

    def test_the_second_in_a_row_that_nobody_reads_ends_the_session(
        self, way: tuple[str, bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        with scripted(*way) as (client, server, told):
            call = client.submit("test", "same", 1)
            with server.attached() as raw:
                raw.recv()
                raw.announce(READ + 1)
                assert raw.recv_end() == too_big(raw)
            assert logged(caplog) == []
            with back(server) as raw:
                raw.recv()  # the same again
                raw.announce(READ + 1)
                assert raw.recv_end() == too_big(raw)
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT: the peer sent a mess"):
                call.result(WAIT)
            first, second = told.first(2)
            assert {first[0], second[0]} == {"invalid_message"}
            assert f"{READ + 1} bytes is above the limit of {READ}" in first[1]
            assert f"raise Options.max_size at both ends, which is {SMALL} here" in second[1]
            wait_for(lambda: logged(caplog))  # whoever waits is told first
            (line,) = logged(caplog)
            assert line == f"the session of client '{client.client_id}' has ended: {second[1]}"
            check_goes_on(client, server)

    def test_a_handshake_may_be_no_longer_than_what_is_taken(self, way: tuple[str, bool]) -> None:
        with scripted(*way) as (client, server, told), ThreadPoolExecutor(1) as pool:
            waits = pool.submit(client.wait_connected, WAIT)
            peer, hello = server.greeted()
            with peer:
                status = {"ok": True, "sessionId": hello["sessionId"], "more": LARGE}
                peer.answer({"type": "HANDSHAKE_RESP", "status": status})
                with pytest.raises(rpc.RiverError, match=r"a handshake of \d+ bytes is too large"):
                    waits.result(WAIT)
                assert told.first(1)[0][0] == "handshake_failed"


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_a_peer_that_refuses_the_same_message_twice_ends_the_session(
    codec: str, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted(codec, True) as (client, server, told):
        call = client.submit("test", "same", 1)
        for number in range(2):
            with server.attached() if not number else back(server) as raw:
                raw.recv_any()
                raw.send_bytes((1009).to_bytes(2, "big") + b"too long for me", 8)
                assert raw.recv_frame()[0] == 8
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT: this side sent a mes"):
            call.result(WAIT)
        assert [kind for kind, _ in told.first(2)] == ["message_send_failure"] * 2
        wait_for(lambda: logged(caplog))
        (line,) = logged(caplog)
        assert "for the second time in a row: too long for me" in line
        check_goes_on(client, server)


def check_goes_on(client: rpc.Client, server: RawServer) -> None:
    """Check that the next call has a session of its own."""
    call = client.submit("test", "same", "next")
    with server.attached() as raw:
        fields = raw.recv()
        raw.send({"streamId": fields["streamId"], "payload": ok(2), "controlFlags": CLOSED})
        assert call.result(WAIT) == 2
        client.close()


def back(server: RawServer) -> RawRiver:
    """Return the next connection, which goes on with the session of the one before."""
    peer, hello = server.greeted()
    peer.welcome(hello["sessionId"])
    peer.ack = hello["expectedSessionState"]["nextSentSeq"]
    peer.seq = hello["expectedSessionState"]["nextExpectedSeq"]
    return peer


def check_cancelled(raw: RawRiver, stream: str) -> None:
    """Check that the client cancels a call, with a reason."""
    fields: Fields = raw.recv()
    assert (fields["streamId"], fields["controlFlags"]) == (stream, CANCEL)
    error = fields["payload"]["payload"]
    assert error["code"] == "CANCEL"
    assert f"Options.max_size, {SMALL}" in error["message"]


def echoes(part: Part) -> Any:
    """Send back the init, and what is written."""
    values = [part.init, *(part.requests or ())]
    if part.responses is None:
        return values[-1]
    for value in values:
        part.responses.write(value)
    return None


def makes(part: Part) -> Any:
    """Answer with as many characters as the init says."""
    if part.responses is None:
        return "x" * part.init
    part.responses.write("x" * part.init)
    return None


@contextmanager
def joined(
    way: tuple[str, bool], act: Any, server_size: int = SMALL, client_size: int = SMALL
) -> Iterator[rpc.Client]:
    codec, websocket = way
    with (
        rpc.serve(
            [staged(act)],
            codec=codec,
            transport="websocket" if websocket else "tcp",
            options=rpc.Options(max_size=server_size, unread_bytes=1000),
        ) as server,
        rpc.connect(
            server.url,
            codec=codec,
            options=rpc.Options(max_size=client_size, unread_bytes=1000),
        ) as client,
    ):
        yield client


def of_size(codec: str, size: int) -> str:
    """Return a text that takes so many bytes as it is packed."""
    return "x" * (2 * size - len(codec_of(codec).pack("x" * size)))


@pytest.mark.parametrize("way", WAYS)
class TestBothEnds:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_largest_value_goes_and_comes(
        self, kind: rpc.Kind, way: tuple[str, bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        largest = of_size(way[0], SMALL)
        with no_exceptions(caplog), joined(way, echoes) as client:
            assert answer(client, kind, largest) in (largest, [largest])
            if kind in (rpc.Kind.UPLOAD, rpc.Kind.STREAM):
                call = begun(client, kind, "first")
                assert isinstance(call, rpc.Upload | rpc.StreamCall)
                call.write(largest)
                call.close_write()
                found = call.finish() if isinstance(call, rpc.Upload) else list(call)[-1]
                assert found == largest

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_larger_init_is_refused_before_it_is_sent(
        self, kind: rpc.Kind, way: tuple[str, bool]
    ) -> None:
        larger = of_size(way[0], SMALL + 1)
        with joined(way, echoes) as client:
            refusal = f"a value of {SMALL + 1} bytes is above Options.max_size, {SMALL}"
            with pytest.raises(rpc.EncodeError, match=refusal):
                answer(client, kind, larger)
            assert client.session is None
            assert answer(client, kind, 1) in (1, [1])

    def test_a_larger_request_leaves_its_call(self, way: tuple[str, bool]) -> None:
        larger = of_size(way[0], SMALL + 1)
        with joined(way, echoes) as client, client.upload("test", "upload", 1, WAIT) as call:
            with pytest.raises(rpc.EncodeError, match="raise max_size at both ends"):
                call.write(larger)
            call.write("small")
            assert call.finish() == "small"

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_server_of_a_smaller_limit_refuses_the_call(
        self, kind: rpc.Kind, way: tuple[str, bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        with no_exceptions(caplog), joined(way, echoes, client_size=10 * SMALL) as client:
            with begun(client, rpc.Kind.STREAM, "beside") as other:
                assert isinstance(other, rpc.StreamCall)
                session = session_of(client).session_id
                with pytest.raises(rpc.RiverError, match=f"INVALID_REQUEST: {SENTENCE}"):
                    answer(client, kind, LARGE)
                other.write("goes on")
                other.close_write()
                assert list(other) == ["beside", "goes on"]
            assert session_of(client).session_id == session

    def test_its_handler_hears_of_a_request(self, way: tuple[str, bool]) -> None:
        heard = Gathered()

        def act(part: Part) -> None:
            assert part.requests is not None
            with pytest.raises(rpc.RiverError) as caught:
                part.requests.read(WAIT)
            heard(str(caught.value))
            check_closed(part.requests)

        with joined(way, act, client_size=10 * SMALL) as client:
            call = client.upload("test", "upload", None, WAIT)
            call.write(LARGE)
            check_caller(call, f"INVALID_REQUEST: {SENTENCE}")
            assert "Options.max_size" in heard.first(1)[0]

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_client_of_a_smaller_limit_ends_the_call(
        self, kind: rpc.Kind, way: tuple[str, bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        with no_exceptions(caplog), joined(way, makes, server_size=10 * SMALL) as client:
            assert len(answer(client, kind, 3)[0]) in (1, 3)
            session = session_of(client).session_id
            with pytest.raises(rpc.RiverError, match=f"CANCEL: {SENTENCE}"):
                answer(client, kind, TAKEN)
            assert session_of(client).calls == 0
            assert len(answer(client, kind, 3)[0]) in (1, 3)
            assert session_of(client).session_id == session

    def test_what_the_server_does_not_read_at_all_ends_the_session_soon(
        self, way: tuple[str, bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        with joined(way, echoes, client_size=100 * SMALL) as client:
            reason = "this side sent a message" if way[1] else "handshake failed: the session has"
            with pytest.raises(rpc.RiverError, match=f"UNEXPECTED_DISCONNECT: {reason}"):
                client.rpc("test", "rpc", "x" * READ, WAIT)
            assert client.rpc("test", "rpc", "next", WAIT) == "next"
        lines = [line for line in logged(caplog) if "the peer sent a message" in line]
        assert len(lines) == 1

    def test_what_the_client_does_not_read_at_all_ends_the_session_soon(
        self, way: tuple[str, bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        with joined(way, makes, server_size=100 * SMALL) as client:
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT: the peer sent a mess"):
                client.rpc("test", "rpc", READ, WAIT)
            assert client.rpc("test", "rpc", 3, WAIT) == "xxx"
        lines = [line for line in logged(caplog) if "the peer sent a message" in line]
        assert len(lines) == 1


def check_closed(requests: rpc.Readable[Any]) -> None:
    with pytest.raises(EOFError):
        requests.read(WAIT)


@pytest.mark.parametrize("way", WAYS)
def test_one_that_is_skipped_takes_memory_for_its_bytes_alone(way: tuple[str, bool]) -> None:
    """Its payload is of arrays, which would take twenty times as much."""
    size = 1024 * 1024
    codec, websocket = way
    with (
        stand(codec, websocket=websocket, options=replace(CALM, max_size=size)) as standing,
        standing.attached() as (peer, _),
    ):
        fields = peer.fields({"streamId": "s", "controlFlags": OPEN})
        nested = b"[" + b"[]," * size + b"[]]"
        if codec == "json":
            data = peer.pack(fields | {"payload": 1}).replace(
                b'"payload": 1', b'"payload":' + nested
            )
        else:
            data = peer.pack(fields | {"payload": [[]] * 3 * size})
        frame = peer.frame(data)
        peer.seq += 1
        tracemalloc.start()
        try:
            peer.sock.sendall(frame)
            standing.check_refused(peer, "s", f"Options.max_size, {size}")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 3.5 * len(data)
        standing.check_lives(peer)


def test_by_default_a_value_of_16_mib_goes_and_a_larger_one_does_not() -> None:
    heard = Gathered()
    limit = 16 * 1024 * 1024
    largest = bytes(limit - 5)  # msgpack puts five bytes before it
    with (
        rpc.serve([staged(lambda part: heard(len(part.init)))]) as server,
        rpc.connect(server.url) as client,
    ):
        client.rpc("test", "rpc", largest, WAIT)
        assert heard.said == [limit - 5]
        with pytest.raises(rpc.EncodeError, match=f"{limit + 1} bytes is above .*, {limit}:"):
            client.rpc("test", "rpc", bytes(limit - 4), WAIT)
