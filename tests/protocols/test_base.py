"""What every machine keeps of the contract that its owner relies on, whatever its wire."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from wsmux.config import MAX_HEAD, Config
from wsmux.exceptions import LocalProtocolError
from wsmux.protocols.base import (
    CODE_UNKNOWN,
    FEW,
    MAX_EARLY_ANSWERS,
    MAX_UNAWAITED,
    MuxProtocol,
    Role,
)
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.bymux_state import INFINITE, BymuxState, HalfState, StreamState
from wsmux.protocols.events import OpenPermitted, StreamOpened
from wsmux.protocols.native import JS_WS, WSMUX_V1, Dialect
from wsmux.protocols.yamux import YamuxProtocol

from ..helpers.bymux_wire import quiet
from ..helpers.machine_pairs import ACK, BOTH_ROLES, ERROR, Pair, control, native, other, outbox
from ..helpers.yamux_wire import yamux

# What may come unread, and what a machine of bymux speaks of at a time.
WINDOW, TURN = 256 * 1024, 64 * 1024


# What the peer may still send, as the peer itself counts it


@BOTH_ROLES
@pytest.mark.parametrize("size", [1, WINDOW, 2**20, 2**27])
@pytest.mark.parametrize("dialect", [WSMUX_V1, JS_WS])
def test_native_announces_the_window_that_it_says(dialect: Dialect, size: int, role: Role) -> None:
    machine = native(role, dialect, receive_window=size)
    announced = machine.announced_window(size)
    assert machine.peer_credit(machine.open_stream()) == announced
    assert announced == (min(size, 2**20 - MAX_HEAD) if dialect is JS_WS else size)


@BOTH_ROLES
@pytest.mark.parametrize("size", [1, WINDOW, 2**20, 2**27])
@pytest.mark.parametrize("kind", [YamuxProtocol, BymuxProtocol])
def test_others_announce_the_window_that_they_say(
    kind: type[YamuxProtocol] | type[BymuxProtocol], size: int, role: Role
) -> None:
    pair = Pair(*[kind(each, Config(receive_window=size)) for each in Role])
    pair.pump()
    machine = pair[role]
    announced = machine.announced_window(size)
    assert machine.peer_credit(machine.open_stream()) == announced
    assert announced == (min(max(size, WINDOW), 2**24) if kind is YamuxProtocol else size)


def joined(wire: str) -> Pair:
    made: list[MuxProtocol]
    if wire == "wsmux":
        made = [native(role) for role in Role]
    else:
        machine = {"yamux": YamuxProtocol, "bymux": BymuxProtocol}[wire]
        made = [machine(role, Config()) for role in Role]
    pair = Pair(*made)
    pair.pump()
    return pair


@BOTH_ROLES
@pytest.mark.parametrize("wire", ["wsmux", "yamux", "bymux"])
def test_peer_credit_is_what_the_peer_may_send(wire: str, role: Role) -> None:
    pair = joined(wire)
    writer, reader = pair[role], pair[other(role)]
    stream_id = writer.open_stream()
    pair.pump()
    writer.send_data(stream_id, b"x" * 1000)
    pair.pump()
    assert reader.peer_credit(stream_id) == WINDOW - 1000
    assert writer.credit(stream_id) == (WINDOW - 1000 if wire != "bymux" else TURN)
    sent = 1000
    while size := writer.send_data(stream_id, b"x" * WINDOW):
        sent += size
    pair.pump()
    assert sent == WINDOW
    assert reader.peer_credit(stream_id) == writer.credit(stream_id) == 0
    reader.consumed(stream_id, WINDOW)
    pair.pump()
    assert reader.peer_credit(stream_id) == WINDOW


@BOTH_ROLES
@pytest.mark.parametrize("wire", ["wsmux", "yamux", "bymux"])
def test_each_stream_earns_both_sides_what_a_peer_may_send_beside_data(
    wire: str, role: Role
) -> None:
    pair = joined(wire)
    before = [pair[each].floods.streams for each in Role]
    for _ in range(3):
        pair[role].open_stream()
    pair.pump()
    assert [pair[each].floods.streams - 3 for each in Role] == before


@pytest.mark.parametrize("wire", ["wsmux", "yamux", "bymux"])
def test_peer_credit_of_a_stream_that_is_not_there_is_not_known(wire: str) -> None:
    assert joined(wire)[Role.CLIENT].peer_credit(12345) is None


def test_peer_credit_of_a_stream_that_needs_none_has_no_limit() -> None:
    endless = StreamState(stream_id=3, incoming=HalfState(credit=INFINITE))
    machine = BymuxProtocol(Role.CLIENT, Config(), BymuxState(streams=(endless,)))
    assert machine.peer_credit(3) is None


# Many control messages become one where the wire has no boundaries to keep


def bymux(role: Role) -> MuxProtocol:
    return quiet(role, opens=2 * FEW)


@pytest.mark.parametrize("make", [yamux, bymux])
def test_many_control_messages_are_one_where_boundaries_do_not_matter(
    make: Callable[[Role], MuxProtocol],
) -> None:
    apart, together = make(Role.CLIENT), make(Role.CLIENT)
    messages: list[bytes] = []
    for _ in range(FEW + 1):
        apart.open_stream()
        messages += control(apart)
        together.open_stream()
    assert control(together) == [b"".join(messages)]
    assert control(together) == []


def test_few_control_messages_are_sent_as_they_are() -> None:
    machine = yamux(Role.CLIENT)
    for _ in range(FEW):
        machine.open_stream()
    assert len(control(machine)) == FEW


def test_control_messages_of_the_native_wire_stay_apart() -> None:
    machine = native(Role.CLIENT)
    for _ in range(FEW + 1):
        machine.open_stream()
    assert len(control(machine)) == FEW + 1


# Events, and what is to be sent

MACHINES: dict[str, Callable[[Role], MuxProtocol]] = {
    "wsmux": native,
    "js-ws": partial(native, dialect=JS_WS),
    "yamux": yamux,
    "bymux": bymux,
}
EVERY = pytest.mark.parametrize("make", MACHINES.values(), ids=MACHINES)
Make = Callable[[Role], MuxProtocol]


@EVERY
def test_events_and_messages_are_told_once(make: Make) -> None:
    client, server = make(Role.CLIENT), make(Role.SERVER)
    stream_id = client.open_stream()
    assert client.has_output()
    messages = [head + bytes(rest) for head, rest in client.control_to_send()]
    messages += [head + bytes(rest) for head, rest in client.data_to_send()]
    assert not client.has_output()
    assert (client.control_to_send(), client.data_to_send()) == ([], [])
    for message in messages:
        server.receive_data(message)
    assert server.events()[0] == StreamOpened(stream_id)
    assert StreamOpened(stream_id) not in server.events()


@EVERY
def test_the_parity_of_an_id_tells_who_opened_the_stream(make: Make) -> None:
    parities = []
    for machine in map(make, Role):
        ids = [machine.open_stream() for _ in range(3)]
        assert ids == sorted(set(ids))
        parities.append({each % 2 for each in ids})
    assert sorted(parities, key=min) == [{0}, {1}]


@EVERY
def test_a_machine_that_has_heard_nothing_holds_nothing_and_awaits_nothing(make: Make) -> None:
    machine = make(Role.SERVER)
    assert (machine.held(), machine.incomplete(), machine.next_timer()) == (0, None, None)
    assert (machine.open_streams(), machine.pending_closes()) == (0, 0)
    assert not machine.close_notice_came()


@EVERY
def test_codes_of_the_protocol_and_of_applications_fit_the_wire(make: Make) -> None:
    machine = make(Role.CLIENT)
    assert CODE_UNKNOWN <= machine.refused_code <= machine.last_code
    assert machine.first_application_code <= machine.last_code


@EVERY
def test_a_ping_that_the_wire_does_not_have_is_refused_by_the_name_of_the_wire(make: Make) -> None:
    machine = make(Role.CLIENT)
    stream_id = machine.open_stream()
    assert machine.may_ping() is machine.pings
    if not machine.pings:
        with pytest.raises(LocalProtocolError, match=f"^{machine.name} has no protocol-level ping"):
            machine.ping(1)
    if machine.name != "bymux":  # which pings single streams
        with pytest.raises(LocalProtocolError, match=f"^{machine.name} cannot ping single streams"):
            machine.ping_stream(stream_id, 1)


# Streams that the peer answers


@pytest.mark.parametrize("make", [native, yamux])
@BOTH_ROLES
def test_opening_is_permitted_again_with_the_first_answer_and_said_once(
    make: Callable[..., MuxProtocol], role: Role
) -> None:
    pair = Pair(*(make(each, max_pending_opens=3) for each in Role))
    opener = pair[role]
    for _ in range(3):
        assert opener.may_open()
        opener.open_stream()
    assert not opener.may_open()
    reported = dict(zip(Role, pair.pump(), strict=True))
    assert reported[role].count(OpenPermitted()) == 1
    assert opener.may_open()


# Answers that nobody waits for


def begun(wire: str, size: int) -> tuple[Pair, int]:
    """Return two machines and a stream that came with ``size`` bytes, and was accepted."""
    pair = joined(wire)
    client = pair[Role.CLIENT]
    client.open_stream()
    pair.pump()
    stream_id = client.open_stream()
    while size:
        size -= client.send_data(stream_id, b"x" * size)
    deliver(client, pair[Role.SERVER])
    return pair, stream_id


def deliver(sender: MuxProtocol, receiver: MuxProtocol) -> None:
    """Hand over what one machine has to send, as one batch; the other accepts streams."""
    for message in outbox(sender):
        receiver.receive_data(message)
        while events := receiver.events():
            for event in events:
                if isinstance(event, StreamOpened):
                    receiver.accept(event.stream_id, WINDOW)
    receiver.hurry_if_awaited()


EARLY = pytest.mark.parametrize(("wire", "early"), [("wsmux", 16 * 1024), ("yamux", WINDOW)])


@EARLY
def test_the_answer_to_a_stream_goes_with_the_next_message(wire: str, early: int) -> None:
    pair, stream_id = begun(wire, 1000)
    server = pair[Role.SERVER]
    assert (server.unawaited, server.has_output()) == (1, False)
    server.send_data(stream_id, b"answer")
    assert server.has_output()
    assert len(outbox(server)) == 2
    assert (server.unawaited, server.has_output()) == (0, False)


@EARLY
def test_the_answer_is_awaited_if_nothing_came_with_the_opening(wire: str, early: int) -> None:
    pair, _ = begun(wire, 0)
    assert pair[Role.SERVER].has_output()


@EARLY
def test_the_answer_is_awaited_once_half_of_the_early_bytes_came(wire: str, early: int) -> None:
    pair, stream_id = begun(wire, early // 2)
    client, server = pair[Role.CLIENT], pair[Role.SERVER]
    assert not server.has_output()
    client.send_data(stream_id, b"x")
    deliver(client, server)
    assert server.has_output()


@EARLY
def test_nobody_waits_for_the_answer_to_a_stream_that_has_ended(wire: str, early: int) -> None:
    pair, stream_id = begun(wire, 1)
    client, server = pair[Role.CLIENT], pair[Role.SERVER]
    client.reset_write(stream_id, 77)
    client.reset_read(stream_id, 77)
    deliver(client, server)
    outbox(server)
    server.unawaited = 1  # as if it were still to be sent
    server.hurry_if_awaited()
    assert server.unawaited == 1


@EARLY
def test_few_answers_are_kept(wire: str, early: int) -> None:
    pair, _ = begun(wire, 1)
    client, server = pair[Role.CLIENT], pair[Role.SERVER]
    for kept in range(2, MAX_EARLY_ANSWERS + 1):
        assert server.unawaited == kept - 1
        client.send_data(client.open_stream(), b"x")
        deliver(client, server)
    assert (server.unawaited, server.has_output()) == (0, True)
    assert len(outbox(server)) == MAX_EARLY_ANSWERS


def test_hurrying_sends_what_nobody_waits_for() -> None:
    server = begun("wsmux", 1)[0][Role.SERVER]
    server.hurry()
    assert server.has_output()


@BOTH_ROLES
def test_nobody_waits_for_the_echo_of_an_end(role: Role) -> None:
    pair = joined("wsmux")
    stream_ids = [pair[role].open_stream() for _ in range(MAX_UNAWAITED // 2 + 1)]
    pair.pump()
    near, far = pair[role], pair[other(role)]
    for kept, stream_id in enumerate(stream_ids):
        assert (far.unawaited, far.has_output()) == (2 * kept, False) or kept == MAX_UNAWAITED // 2
        near.close_write(stream_id, 0.0)
        near.close_read(stream_id)
        deliver(near, far)
    assert far.has_output()
    assert len(outbox(far)) == 2 * len(stream_ids)


def test_the_published_package_waits_for_the_echo_of_an_end() -> None:
    pair = Pair(native(Role.CLIENT, JS_WS), native(Role.SERVER, JS_WS))
    near, far = pair[Role.CLIENT], pair[Role.SERVER]
    stream_id = near.open_stream()
    pair.pump()
    near.close_write(stream_id, 0.0)
    deliver(near, far)
    assert (far.unawaited, far.has_output()) == (0, True)


def test_what_nobody_waits_for_keeps_its_place() -> None:
    """An answer to a stream goes ahead of its reset."""
    pair, stream_id = begun("wsmux", 1)
    server = pair[Role.SERVER]
    server.reset_read(stream_id, 77)
    answer, stop = outbox(server)
    assert (answer[1], stop[1]) == (ACK, ERROR)
