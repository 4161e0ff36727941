"""What cannot be decoded ends the session of who sent it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..helpers.rpc.bad_bytes import BAD_BYTES, Row, row_name
from ..helpers.rpc.standing_server import Stand, no_exceptions, stand
from ..helpers.tables import each_case


@pytest.fixture(scope="module")
def stands() -> Iterator[dict[str, Stand]]:
    with stand("json", websocket=True) as json, stand("msgpack", websocket=False) as msgpack:
        yield {"json": json, "msgpack": msgpack}


@each_case
@pytest.mark.parametrize("row", BAD_BYTES, ids=row_name)
def test_in_a_session_it_is_destroyed(
    row: Row, stands: dict[str, Stand], caplog: pytest.LogCaptureFixture
) -> None:
    codec, bad = row
    standing = stands[codec]
    with no_exceptions(caplog), standing.attached() as (peer, session):
        peer.send_bytes(bad.data)
        standing.check_destroyed(peer, session)


@each_case
@pytest.mark.parametrize("row", BAD_BYTES[::6], ids=row_name)
def test_as_a_handshake_it_has_no_answer(
    row: Row, stands: dict[str, Stand], caplog: pytest.LogCaptureFixture
) -> None:
    codec, bad = row
    standing = stands[codec]
    with no_exceptions(caplog), standing.dial() as peer:
        peer.send_bytes(bad.data)
        assert peer.recv_end() == peer.clean
    standing.settle()
