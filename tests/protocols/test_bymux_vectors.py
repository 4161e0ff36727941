"""Conversations written by hand, of ``helpers/vectors``, mean and give what they must."""

from __future__ import annotations

import pytest

from wsmux.exceptions import RemoteProtocolError
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.events import (
    Event,
    StreamOpened,
)

from ..helpers.bymux_wire import fresh, of
from ..helpers.machine_pairs import outbox
from ..helpers.tables import each_case
from ..helpers.vectors.bymux import CONVERSATIONS, WINDOW, Call, Conversation


def take(machine: BymuxProtocol) -> list[Event]:
    """Return the events as an owner does that takes every stream."""
    events: list[Event] = []
    while more := machine.events():
        events += more
        for event in more:
            if isinstance(event, StreamOpened):
                machine.accept(event.stream_id, WINDOW)
    return events


def play(conversation: Conversation, machine: BymuxProtocol, chunk: int) -> tuple[list[Event], str]:
    """Return what was reported, and the sentence that the last step ended with."""
    events: list[Event] = []
    for step in conversation.steps:
        if isinstance(step, Call):
            outbox(machine)
            getattr(machine, step.name)(*step.arguments)
            events += take(machine)
        elif step[0] == "<":
            assert b"".join(outbox(machine)) == of(step[1:])
        else:
            outbox(machine)  # what no step asked for
            wire = of(step[1:])
            try:
                for start in range(0, len(wire), chunk):
                    machine.receive_data(wire[start : start + chunk])
                    events += take(machine)
            except RemoteProtocolError as error:
                return events + take(machine), str(error)
    return events, ""


@each_case
@pytest.mark.parametrize("chunk", [1, 2, 3, 2**20])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversation(name: str, chunk: int) -> None:
    conversation = CONVERSATIONS[name]
    machine = fresh(conversation.role, receive_window=WINDOW, max_streams=WINDOW)
    expected = conversation.events, conversation.error
    assert play(conversation, machine, chunk) == expected
