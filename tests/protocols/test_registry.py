"""The names of wires stand for machines, framings and subprotocols, whatever way they are given."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.config import Config
from wsmux.protocols.base import Role
from wsmux.protocols.bymux_state import BymuxState, HalfState
from wsmux.protocols.framing import ByteFraming, NoFraming
from wsmux.protocols.registry import (
    WIRES,
    check_subprotocol,
    is_resumable,
    protocol_of,
    resumable,
    resumable_wire,
    served_protocols,
    subprotocols,
    wire,
)
from wsmux.protocols.resumable_framing import ResumableFraming
from wsmux.protocols.resumption import Session
from wsmux.protocols.websocket import WebSocketFraming

SUBPROTOCOLS = {
    "wsmux": "wsmux.v1",
    "js-ws": None,
    "yamux": "yamux",
    "bymux": "bymux",
}


def test_each_wire_has_its_name_and_subprotocol() -> None:
    assert {name: each.subprotocol for name, each in WIRES.items()} == SUBPROTOCOLS
    assert all(wire(name).name == name for name in WIRES)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("name", WIRES)
def test_each_wire_makes_its_own_machine_over_both_carriers(name: str, role: Role) -> None:
    config = Config(max_message_size=200_000)
    framing, machine = wire(name).over_websocket(role, config, None)
    plain, same = wire(name).over_bytes(role, config, None)
    assert isinstance(framing, WebSocketFraming)
    assert isinstance(plain, ByteFraming if name in ("wsmux", "js-ws") else NoFraming)
    assert machine.name == same.name == name
    assert type(machine) is type(same)
    assert machine is not same


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("name", WIRES)
def test_each_wire_makes_the_same_machine_for_carriers_of_a_session(name: str, role: Role) -> None:
    session = Session(bytes(16), 2**20, 60.0)
    config = Config(max_message_size=200_000, max_fragments=7)
    framing, machine = wire(name).over_carriers(role, config, None, session)
    assert isinstance(framing, ResumableFraming)
    assert framing.session is session
    assert (framing.max_message_size, framing.max_fragments) == (200_001, 7)
    _, same = wire(name).over_bytes(role, config, None)
    assert type(machine) is type(same)
    assert machine.name == name


def test_only_bymux_takes_an_initial_state() -> None:
    state = BymuxState(opening=HalfState(credit=3))
    for name in WIRES:
        _, machine = wire(name).over_bytes(Role.CLIENT, Config(), state)
        assert machine.may_open() is (name != "bymux" or state.opening.credit > 0)
    _, machine = wire("bymux").over_bytes(Role.CLIENT, Config(), None)
    assert not machine.may_open()  # without one there is no credit for it yet


@pytest.mark.parametrize("given", [None, 5, b"yamux", ["yamux"]])
def test_what_is_no_string_names_no_wire(given: Any) -> None:
    with pytest.raises(TypeError, match="protocol must be one of wsmux, js-ws, yamux, bymux, a"):
        wire(given)


@pytest.mark.parametrize("given", ["", "YAMUX", "wsmux.v1", "yamux "])
def test_a_name_that_no_wire_has_is_refused_with_all_that_there_are(given: str) -> None:
    with pytest.raises(ValueError, match="protocol must be one of wsmux, js-ws, yamux, bymux, not"):
        wire(given)


def test_js_ws_offers_nothing_in_a_handshake() -> None:
    assert subprotocols(("js-ws",)) == []
    assert subprotocols(("yamux", "js-ws", "wsmux")) == ["yamux", "wsmux.v1"]


def test_a_server_serves_what_it_is_given_in_that_order() -> None:
    assert served_protocols(["bymux", "wsmux"]) == ("bymux", "wsmux")
    assert set(served_protocols({"bymux", "wsmux"})) == {"bymux", "wsmux"}


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ((), ValueError, "protocols is empty"),
        ("yamux", TypeError, "put it in a list"),
        (["yamux", "http"], ValueError, "not 'http'"),
        ([None], TypeError, "must hold strings only"),
    ],
)
def test_a_server_refuses_what_it_cannot_serve(
    given: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        served_protocols(given)


def test_a_subprotocol_stands_for_one_of_the_wires_that_are_served() -> None:
    names = ("yamux", "js-ws")
    assert protocol_of("yamux", names) == "yamux"
    assert protocol_of(None, names) == "js-ws"
    assert protocol_of("bymux", names) is None
    assert protocol_of(None, ("yamux",)) is None


def test_a_resumable_subprotocol_has_the_name_of_its_wire_behind_a_plus() -> None:
    assert resumable(tuple(WIRES)) == [
        "wsmux.resume.v1+wsmux",
        "wsmux.resume.v1+js-ws",
        "wsmux.resume.v1+yamux",
        "wsmux.resume.v1+bymux",
    ]
    assert resumable(()) == []
    for offer in resumable(tuple(WIRES)):
        assert check_subprotocol(offer) == offer
        assert is_resumable(offer)
        assert wire(resumable_wire(offer)).name == resumable_wire(offer)


@pytest.mark.parametrize("name", ["yamux", "wsmux.v1", "wsmux.resume.v1", "wsmux.resume.v2+yamux"])
def test_other_subprotocols_are_not_resumable(name: str) -> None:
    assert not is_resumable(name)


def test_a_resumable_subprotocol_stands_for_its_wire_if_that_is_served() -> None:
    for name in WIRES:
        (offer,) = resumable((name,))
        assert protocol_of(offer, tuple(WIRES)) == name
        assert protocol_of(offer, (name,)) == name
        assert protocol_of(offer, tuple(WIRES.keys() - {name})) is None
    assert protocol_of("wsmux.resume.v1+", tuple(WIRES)) is None
    assert protocol_of("wsmux.resume.v1+http", tuple(WIRES)) is None


@pytest.mark.parametrize("name", ["yamux", "v1.app_x", "a!#$%&'*+-.^_`|~b"])
def test_a_subprotocol_is_any_token(name: str) -> None:
    assert check_subprotocol(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a\r\nX: y", "ü", "a/b"])
def test_a_subprotocol_that_no_header_carries_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a single token of HTTP"):
        check_subprotocol(name)


@pytest.mark.parametrize("name", [None, 1, ["yamux"]])
def test_a_subprotocol_is_a_string(name: Any) -> None:
    with pytest.raises(TypeError, match="subprotocol must be a string"):
        check_subprotocol(name)
