"""What cannot be decoded ends the session of who sent it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..helpers.rpc.codec_messages import Bad
from ..helpers.rpc.standing_server import Stand, no_exceptions, stand
from .wire.test_json_malformed import TABLE as JSON_TABLE
from .wire.test_msgpack_malformed import TABLE as MSGPACK_TABLE

ROWS = [("json", bad) for bad in JSON_TABLE] + [("msgpack", bad) for bad in MSGPACK_TABLE]


@pytest.fixture(scope="module")
def stands() -> Iterator[dict[str, Stand]]:
    with stand("json", websocket=True) as json, stand("msgpack", websocket=False) as msgpack:
        yield {"json": json, "msgpack": msgpack}


def name(row: tuple[str, Bad]) -> str:
    return f"{row[0]}-{row[1].name}"


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_in_a_session_it_is_destroyed(
    row: tuple[str, Bad], stands: dict[str, Stand], caplog: pytest.LogCaptureFixture
) -> None:
    codec, bad = row
    standing = stands[codec]
    with no_exceptions(caplog), standing.attached() as (peer, session):
        peer.send_bytes(bad.data)
        standing.check_destroyed(peer, session)


@pytest.mark.parametrize("row", ROWS[::6], ids=name)
def test_as_a_handshake_it_has_no_answer(
    row: tuple[str, Bad], stands: dict[str, Stand], caplog: pytest.LogCaptureFixture
) -> None:
    codec, bad = row
    standing = stands[codec]
    with no_exceptions(caplog), standing.dial() as peer:
        peer.send_bytes(bad.data)
        assert peer.recv_end() == peer.clean
    standing.settle()
