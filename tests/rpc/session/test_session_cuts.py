"""A conversation that is cut at any of its frames arrives whole, in order, once."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc.options import Options
from wsmux.rpc.session.session import Session

from ...helpers.rpc.memory_net import Net
from ...helpers.tables import each_case


def converse(cut_at: int) -> Net:
    """Hold a conversation: calls, answers to each, calls that overlap, and a heartbeat."""
    world = Net(Options(backoff_jitter=0.0, ack_messages=3))
    world.cut_at = cut_at

    def answer(session: Session, payload: Any) -> None:
        session.send(world.server_codec.pack(["re", payload]), stream_id="stream", flags=0)

    world.on_server = answer
    world.call(0)
    world.client.connect(world.now)
    world.run()
    for number in range(1, 4):
        world.call(number)
        world.run()
    for number in range(4, 10):
        world.call(number)
    world.sleep(1.0)
    world.call(10)
    world.sleep(10.0)
    return world


WHOLE = converse(-1)
CALLS = list(range(11))


def test_the_conversation_is_long_enough_to_be_worth_cutting() -> None:
    assert WHOLE.frames > 30
    assert WHOLE.server_got == CALLS


@each_case
@pytest.mark.parametrize("index", range(WHOLE.frames))
def test_a_cut_at_any_frame_loses_and_repeats_nothing(index: int) -> None:
    world = converse(index)
    assert world.cut_at == -1, "the cut was not made"
    assert world.server_got == CALLS
    assert world.client_got == [["re", number] for number in CALLS]
    assert (world.statuses(), world.server_over, world.refusals) == (["created"], [], [])
