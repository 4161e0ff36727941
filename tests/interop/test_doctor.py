"""Have the doctor name the wire of published Yamux peers, asked for another one."""

from __future__ import annotations

import pytest

from wsmux.doctor import Plan, Status, Step, examine

from ..helpers.interop.link import HOST, yamux_marks
from ..helpers.interop.peer_process import PeerProcess

pytestmark = yamux_marks


def failure(peer: PeerProcess, carrier: str) -> Step:
    """Return what the doctor says of a peer that knows no subprotocol; ask in the default wire."""
    given = {"carrier": carrier, "host": HOST, "config": {}, "subprotocol": None}
    port = peer.call("listen", **given)["port"]
    report = examine(Plan(url=f"{carrier}://{HOST}:{port}", timeout=2.0))
    [step] = [step for step in report.steps if step.status is Status.FAILED]
    return step


@pytest.mark.parametrize("carrier", ["tcp", "ws"])
def test_yamux_is_found_where_nothing_names_it(mortal_peer: PeerProcess, carrier: str) -> None:
    step = failure(mortal_peer, carrier)
    assert step.fact == "the server does not speak wsmux here, but yamux"
    assert "--protocol yamux" in step.fix
    assert ("--subprotocol none" in step.fix) is (carrier == "ws")
