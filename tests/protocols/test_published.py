"""What published peers said means to our machines what it must, and ours say it in their place.

The conversations are made up from seeds (``published.scripts``) and were held with npm
``@libp2p/yamux`` 8.0.3, PyPI ``libp2p`` 0.8.1 and npm ``@matrixai/ws`` 1.1.7, each as client and as
server (``record``). A machine of ours sends the same bytes in the peer's place, but for the
differences that are listed here.
"""

from __future__ import annotations

from functools import cache

import pytest

from ..helpers.published.differences import DIFFERENCES, fewest
from ..helpers.published.replay import PEERS, Recording, recordings, told
from ..helpers.published.scripts import payload, script
from ..helpers.tables import each_case, each_row

# Conversations: all that are wanted at least, and those that have the same bytes to the last.
WANTED = {"node-yamux": 70, "python-yamux": 70, "js-ws": 70}
SAME = {"node-yamux": 0, "python-yamux": 15, "js-ws": 50}


ALL = [recording for peer in PEERS for recording in recordings(peer)]


@cache
def found(peer: str) -> dict[str, tuple[str, ...] | None]:
    """Return what accounts for each conversation with a peer, by its seed."""
    return {recording.seed: fewest(recording) for recording in recordings(peer)}


@each_case
@each_row(ALL, name=lambda recording: recording.seed)
def test_ours_says_what_the_peer_said(recording: Recording) -> None:
    assert found(recording.peer)[recording.seed] is not None


@pytest.mark.parametrize("peer", PEERS)
def test_every_listed_difference_is_met(peer: str) -> None:
    met = {name for names in found(peer).values() for name in names or ()}
    assert met == {rule.__name__ for rule in DIFFERENCES[peer]}


@pytest.mark.parametrize("peer", PEERS)
def test_there_are_as_many_as_is_said(peer: str) -> None:
    assert len(found(peer)) >= WANTED[peer]
    assert list(found(peer).values()).count(()) >= SAME[peer]


@each_case
@each_row(ALL, name=lambda recording: recording.seed)
def test_ours_hears_what_the_peer_did(recording: Recording) -> None:
    """Bytes, ends and resets of each stream are those of the script."""
    streams = told(recording)
    data = [b""] * len(streams)
    ends = [""] * len(streams)
    for step in recording.steps("theirs"):
        if step.verb == "write":
            data[step.stream] += payload(step)
        elif step.verb != "open":
            ends[step.stream] = step.verb
    assert [seen.data for seen in streams] == data
    assert [seen.end for seen in streams] == ends


@pytest.mark.parametrize("peer", PEERS)
def test_the_steps_are_those_of_the_seeds(peer: str) -> None:
    for recording in recordings(peer):
        kept = [entry for entry in recording.log if entry[0] in ("ours", "theirs")]
        assert kept == [[*step] for step in script(recording.seed)]
