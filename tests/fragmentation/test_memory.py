"""Cut a conversation of pure machines behind every byte, in both directions, four wires."""

from __future__ import annotations

import functools

import pytest

from wsmux.testing import Faults

from ..helpers.conversation import Conversation, check
from ..helpers.wires import NAMES

ON_EVERY_WIRE = pytest.mark.parametrize("protocol", NAMES)

# In the plain tests one cut of so many is made: a prime, so that no step is left out for ever.
SAMPLE = 37


@functools.cache
def whole(protocol: str, carrier: str = "websocket") -> Conversation:
    """Return a conversation that nothing disturbed."""
    conversation = Conversation(protocol, carrier)
    conversation.run()
    return conversation


def cut_at_every(protocol: str, step: int, carrier: str = "websocket") -> int:
    """Cut behind every ``step``-th byte, each way, with an end of file and a reset."""
    model, made = whole(protocol, carrier), 0
    for place, way in enumerate(("up", "down")):
        quiet = model.before_going_away()[place]
        for count in range(1, model.network.counters(way).forwarded + 1, step):
            for how in ("fin", "rst"):
                conversation = Conversation(protocol, carrier)
                conversation.network.cut_after(count, way=way, how=how)
                conversation.run()
                assert conversation.network.counters(way).forwarded == count
                check(conversation, early=count <= quiet)
                made += 1
    return made


@pytest.mark.parametrize("carrier", ["websocket", "bytes"])
@ON_EVERY_WIRE
def test_a_whole_conversation_has_everything_in_it(protocol: str, carrier: str) -> None:
    conversation = whole(protocol, carrier)
    assert len(conversation.marks) == 18
    check(conversation, early=False)
    for end, other in ((conversation.client, conversation.server),) * 2:
        for stream in {stream for side, stream in conversation.closed if side is end}:
            assert other.received[stream] == conversation.written[end][stream]
            assert stream in other.ended
    assert conversation.client.pongs == [5]
    assert conversation.server.pongs == [6]


@ON_EVERY_WIRE
def test_a_cut_anywhere_ends_typed_and_leaves_a_prefix(protocol: str) -> None:
    assert cut_at_every(protocol, SAMPLE) >= 130


@ON_EVERY_WIRE
def test_a_cut_anywhere_on_a_plain_socket_does_so_too(protocol: str) -> None:
    assert cut_at_every(protocol, 2 * SAMPLE, "bytes") >= 60


def test_one_wrong_byte_would_be_found() -> None:
    conversation = Conversation("bymux", "bytes")
    conversation.network.corrupt_after(700, way="up", mask=1)  # in the middle of 700 bytes of data
    conversation.run()
    with pytest.raises(AssertionError):
        check(conversation, early=False)


@pytest.mark.long
@pytest.mark.hang_bound(900)
@pytest.mark.parametrize("carrier", ["websocket", "bytes"])
@ON_EVERY_WIRE
def test_a_cut_behind_every_byte_ends_typed_and_leaves_a_prefix(
    protocol: str, carrier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = cut_at_every(protocol, 1, carrier)
    with capsys.disabled():
        print(f"\n{protocol} over {carrier}: {made} cuts")  # noqa: T201 - the figure
    assert made >= 4400


# What must change nothing: each in the long tests, the first two in all of them.
PIECES = {
    "one-byte": Faults(slice=1),
    "gathered": Faults(coalesce=64 * 1024),
    "three-bytes": Faults(slice=3),
    "late": Faults(latency=0.75, jitter=1.0),
    "slow": Faults(rate=1000),
    "slow-and-small": Faults(rate=500, slice=1, latency=0.1, jitter=0.3, buffer=16),
}


@pytest.mark.parametrize(
    "pieces",
    [
        name if place < 2 else pytest.param(name, marks=pytest.mark.long)
        for place, name in enumerate(PIECES)
    ],
)
@pytest.mark.parametrize("carrier", ["websocket", "bytes"])
@ON_EVERY_WIRE
def test_pieces_and_delays_change_nothing(protocol: str, carrier: str, pieces: str) -> None:
    conversation = Conversation(protocol, carrier, up=PIECES[pieces], down=PIECES[pieces])
    conversation.run()
    assert conversation.told() == whole(protocol, carrier).told()
