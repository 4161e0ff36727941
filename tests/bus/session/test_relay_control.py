"""Ask relays themselves, and keep requests standing over lost connections."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import (
    FAILED,
    UNAVAILABLE,
    UNKNOWN_COMMAND,
    BusError,
    CallTimeout,
    RelayRefused,
)
from wsmux.bus.relay.control import Asked, Refusal
from wsmux.bus.relay.relay import Relay
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.session import relay_control
from wsmux.bus.session.identity_session import clock
from wsmux.bus.session.relay_control import RelayControl, Standing
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import relay_response, response
from wsmux.bus.wire.messages import Envelope
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.clients import WAIT, client, staged
from ...helpers.bus.inside import control_of, standing_of
from ...helpers.bus.relays import Table, identity, relay, served
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.waiting import wait_for

stage = pytest.fixture(staged)

KEY = re.compile("[a-z]{1,8}")


class Register:
    """The register that a relay keeps for each connection; it refuses while it is closed."""

    def __init__(self, made: Relay) -> None:
        self.kept: dict[object, str] = {}
        self.closed = False
        self.asked = 0
        self.failures: list[int] = []  # the codes of the next attempts to drop
        self.failure = 0  # the code with which it keeps and fails
        self.hold = threading.Event()
        self.hold.set()
        made.control.add("relay.keep", self._keep)
        made.control.add("relay.drop", self._drop)
        made.control.on_leave(lambda session: self.kept.pop(session, None) and None)

    def _keep(self, asked: Asked) -> object:
        self.asked += 1
        assert self.hold.wait(WAIT)
        if self.closed:
            raise Refusal(403, "not today")
        self.kept[asked.session] = asked.fields.text("key", KEY, "letters")
        if self.failure:
            raise Refusal(self.failure, "half done")
        return "kept"

    def _drop(self, asked: Asked) -> object:
        if self.failures:
            raise Refusal(self.failures.pop(), "not now")
        return self.kept.pop(asked.session, None)

    def keys(self) -> list[str]:
        return list(self.kept.values())


@pytest.fixture
def made() -> Relay:
    return relay()


@pytest.fixture
def register(made: Relay) -> Register:
    return Register(made)


@pytest.fixture
def server(made: Relay, register: Register) -> Iterator[RelayServer]:
    with served(made) as running:
        yield running


@pytest.fixture
def alice(server: RelayServer) -> Iterator[Client]:
    with Client(identity(1), server.url, Table(), twin=1) as made:
        made.wait_connected(WAIT)
        yield made


@pytest.fixture
def control(alice: Client) -> RelayControl:
    return control_of(alice)


@pytest.fixture
def standing(alice: Client) -> Standing:
    return standing_of(alice)


def keep(standing: Standing) -> None:
    standing.add("mine", "relay.keep", {"key": "mine"}, "relay.drop")


def test_a_relay_answers(control: RelayControl) -> None:
    assert control.ask("relay.keep", {"key": "mine"}, Deadline(WAIT)) == "kept"


def test_a_refusal_has_its_code(control: RelayControl, register: Register) -> None:
    register.closed = True
    with pytest.raises(RelayRefused, match="not today") as caught:
        control.ask("relay.keep", {"key": "mine"}, Deadline(WAIT))
    assert (caught.value.code, caught.value.retry_safe) == (403, True)


def test_an_answer_may_come_too_late(control: RelayControl, register: Register) -> None:
    register.hold.clear()
    try:
        with pytest.raises(CallTimeout, match="did not answer 'relay.keep' in time"):
            control.ask("relay.keep", {"key": "mine"}, Deadline(0.05))
    finally:
        register.hold.set()
    assert control.ask("relay.keep", {"key": "mine"}, Deadline(WAIT)) == "kept"


def test_a_relay_of_another_kind_is_told_apart() -> None:
    with served() as running, Client(identity(1), running.url, Table(), twin=1) as made:
        made.wait_connected(WAIT)
        with pytest.raises(RelayRefused) as caught:
            control_of(made).ask("other.command", {}, Deadline(WAIT))
        assert caught.value.code == UNKNOWN_COMMAND


def test_a_lost_connection_ends_the_wait(stage: StageRelay) -> None:
    stage.change = lambda _: []  # it never answers
    with client(stage, Table()) as made, ThreadPoolExecutor(1) as pool:
        made.wait_connected(WAIT)
        asked = pool.submit(control_of(made).ask, "relay.keep", {}, Deadline(WAIT))
        wait_for(lambda: len(stage.passed) == 1, WAIT)
        stage.cut()
        with pytest.raises(BusError, match="gave no answer: the connection ended") as caught:
            asked.result(WAIT)
        assert caught.value.code == UNAVAILABLE


def test_closing_ends_the_wait(stage: StageRelay) -> None:
    stage.change = lambda _: []
    with ThreadPoolExecutor(1) as pool:
        with client(stage, Table()) as made:
            made.wait_connected(WAIT)
            control = control_of(made)
            asked = pool.submit(control.ask, "relay.keep", {}, Deadline(WAIT))
            wait_for(lambda: len(stage.passed) == 1, WAIT)
        with pytest.raises(BusError, match="the client was closed"):
            asked.result(WAIT)
    with pytest.raises(ValueError, match="closed"):
        control.ask("relay.keep", {}, Deadline(WAIT))


def test_what_is_no_json_is_an_error(stage: StageRelay) -> None:
    def answer(envelope: Envelope) -> list[Envelope]:
        return [relay_response(envelope, Address(1, envelope.source.connection), b"{", clock())]

    stage.change = answer
    with client(stage, Table()) as made:
        made.wait_connected(WAIT)
        with pytest.raises(RelayRefused, match="answer cannot be read"):
            control_of(made).ask("relay.keep", {}, Deadline(WAIT))


def test_nobody_else_answers_for_a_relay(stage: StageRelay) -> None:
    def answer(envelope: Envelope) -> list[Envelope]:
        return [response(envelope, Address(2, "s"), clock(), 60, plain=b"{}")]

    stage.change = answer
    with client(stage, Table()) as made:
        made.wait_connected(WAIT)
        with pytest.raises(CallTimeout):
            control_of(made).ask("relay.keep", {}, Deadline(0.2))


# Standing requests


def test_a_standing_request_is_made_again_on_each_connection(
    standing: Standing, register: Register, made: Relay
) -> None:
    keep(standing)
    assert standing.wait("mine", Deadline(WAIT)) == "kept"
    for session in made.sessions.all():
        session.link.abort()
    wait_for(lambda: register.asked == 2 and register.keys() == ["mine"], WAIT)


def test_a_refused_request_is_made_again(standing: Standing, register: Register) -> None:
    register.closed = True
    keep(standing)
    with pytest.raises(RelayRefused, match="not today"):
        standing.wait("mine", Deadline(WAIT))
    (state,) = standing.states("mine").values()
    assert "not today" in state.reason
    register.closed = False
    wait_for(lambda: register.keys() == ["mine"], WAIT)


def test_waiting_ends_at_the_deadline(standing: Standing, register: Register) -> None:
    register.hold.clear()
    try:
        keep(standing)
        with pytest.raises(CallTimeout, match=r"no relay answered 'relay\.keep' in time"):
            standing.wait("mine", Deadline(0.05))
    finally:
        register.hold.set()
    assert standing.wait("mine", Deadline(WAIT)) == "kept"


def test_what_is_removed_is_undone_even_if_it_was_under_way(
    standing: Standing, register: Register
) -> None:
    register.hold.clear()
    keep(standing)
    wait_for(lambda: register.asked == 1, WAIT)
    assert standing.remove("mine")
    assert not standing.wait_undone(Deadline(0.01))
    register.hold.set()
    assert standing.wait_undone(Deadline(WAIT))
    assert register.keys() == []
    assert standing.wanted() == []
    assert not standing.remove("mine")
    with pytest.raises(ValueError, match="not wanted"):
        standing.wait("mine", Deadline(WAIT))


def test_a_request_that_cannot_be_made_stops_no_others(
    standing: Standing, register: Register, caplog: pytest.LogCaptureFixture
) -> None:
    standing.add("no text", "relay.keep", {"key": "\ud800"}, "relay.drop")
    keep(standing)
    assert standing.wait("mine", Deadline(WAIT)) == "kept"
    assert "a request to a relay failed; it is made again" in caplog.text
    assert register.keys() == ["mine"]


def test_what_could_not_be_undone_is_undone_later(standing: Standing, register: Register) -> None:
    keep(standing)
    standing.wait("mine", Deadline(WAIT))
    register.failures = [UNAVAILABLE]
    standing.remove("mine")
    assert standing.wait_undone(Deadline(WAIT))
    assert register.keys() == []


def test_what_a_relay_will_not_undo_is_given_up(standing: Standing, register: Register) -> None:
    keep(standing)
    standing.wait("mine", Deadline(WAIT))
    register.failures = [403]
    standing.remove("mine")
    assert standing.wait_undone(Deadline(WAIT))
    assert register.keys() == ["mine"]


def test_what_could_not_be_undone_and_is_wanted_again_stays(
    standing: Standing, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_control, "RETRY", 2.0)
    keep(standing)
    standing.wait("mine", Deadline(WAIT))
    register.failures = [UNAVAILABLE]
    standing.remove("mine")
    wait_for(lambda: not register.failures, WAIT)
    keep(standing)
    standing.wait("mine", Deadline(WAIT))
    assert standing.wait_undone(Deadline(WAIT))
    assert register.keys() == ["mine"]


def test_a_relay_that_will_not_undo_holds_up_no_other(
    server: RelayServer, register: Register
) -> None:
    made = relay()
    other = Register(made)
    with (
        served(made) as second,
        Client(identity(1), [server.url, second.url], Table(), twin=1) as client,
    ):
        client.wait_connected(WAIT)
        standing = standing_of(client)
        keep(standing)
        wait_for(lambda: register.keys() == other.keys() == ["mine"], WAIT)
        register.failures = [403]
        standing.remove("mine")
        assert standing.wait_undone(Deadline(WAIT))
        assert (register.keys(), other.keys()) == (["mine"], [])


def test_a_closed_client_makes_no_requests(alice: Client, standing: Standing) -> None:
    keep(standing)
    alice.close()
    with pytest.raises(ValueError, match="closed"):
        standing.wait("mine", Deadline(WAIT))
    with pytest.raises(ValueError, match="closed"):
        keep(standing)


def test_what_a_relay_did_too_late_to_say_is_undone(
    standing: Standing, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does what it was asked for as soon as it reads on."""
    monkeypatch.setattr(relay_control, "ASK_TIME", 0.1)
    register.hold.clear()
    try:
        keep(standing)
        wait_for(lambda: any(each.reason for each in standing.states("mine").values()), WAIT)
        standing.remove("mine")
        assert not standing.wait_undone(Deadline(0.2))
    finally:
        monkeypatch.setattr(relay_control, "ASK_TIME", WAIT)
        register.hold.set()
    assert standing.wait_undone(Deadline(WAIT))
    assert register.keys() == []


def test_what_a_relay_failed_in_is_undone(standing: Standing, register: Register) -> None:
    register.failure = FAILED
    keep(standing)
    with pytest.raises(RelayRefused, match="half done"):
        standing.wait("mine", Deadline(WAIT))
    assert register.keys() == ["mine"]
    standing.remove("mine")
    assert standing.wait_undone(Deadline(WAIT))
    assert register.keys() == []


def test_what_a_relay_refused_is_not_undone(standing: Standing, register: Register) -> None:
    register.closed = True
    keep(standing)
    with pytest.raises(RelayRefused, match="not today"):
        standing.wait("mine", Deadline(WAIT))
    register.failures = [FAILED]
    standing.remove("mine")
    assert standing.wait_undone(Deadline(WAIT))
    assert register.failures == [FAILED]
