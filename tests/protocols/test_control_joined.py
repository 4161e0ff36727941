"""Many control messages become one where the wire has no boundaries to keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wsmux.protocols.base import FEW, MuxProtocol, Role

from ..helpers.bymux_wire import quiet
from ..helpers.machine_pairs import control, native
from ..helpers.yamux_wire import yamux


def bymux(role: Role) -> MuxProtocol:
    return quiet(role, opens=2 * FEW)


@pytest.mark.parametrize("make", [yamux, bymux])
def test_many_are_one_message_where_boundaries_do_not_matter(
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


def test_few_are_sent_as_they_are() -> None:
    machine = yamux(Role.CLIENT)
    for _ in range(FEW):
        machine.open_stream()
    assert len(control(machine)) == FEW


def test_messages_of_the_native_wire_stay_apart() -> None:
    machine = native(Role.CLIENT)
    for _ in range(FEW + 1):
        machine.open_stream()
    assert len(control(machine)) == FEW + 1
