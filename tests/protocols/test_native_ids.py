"""Ids of the native wire: what was opened, what was left out, and what can never come."""

from __future__ import annotations

import pytest

from wsmux.exceptions import StreamIdError, StreamsExhausted
from wsmux.protocols.base import Role
from wsmux.protocols.native import MAX_GAPS, StreamIds
from wsmux.protocols.varint import MAX_VARINT

from ..helpers.machine_pairs import BOTH_ROLES, id_of, other


@BOTH_ROLES
def test_an_own_id_is_seen_once_it_is_opened(role: Role) -> None:
    ids = StreamIds(role, strict=True)
    for index in range(3):
        with pytest.raises(StreamIdError, match=f"stream {id_of(role, index)} has the parity"):
            ids.seen(id_of(role, index))
        assert ids.open() == id_of(role, index)
        assert ids.seen(id_of(role, index))


def test_no_id_is_left_above_the_largest() -> None:
    ids = StreamIds(Role.CLIENT, strict=True)
    ids.next = MAX_VARINT - 1
    assert ids.open() == MAX_VARINT - 1
    with pytest.raises(StreamsExhausted, match="61"):
        ids.open()


@BOTH_ROLES
def test_ids_that_the_peer_left_out_never_come(role: Role) -> None:
    ids = StreamIds(role, strict=True)
    peers = [id_of(other(role), index) for index in range(7)]
    for index in (0, 1, 5):
        ids.peer_opened(peers[index])
    assert [ids.seen(peers[index]) for index in (0, 1, 5, 6)] == [True, True, True, False]
    for index in (2, 3, 4):
        words = f"stream {peers[index]} is new, but not above {peers[5]}, opened before"
        with pytest.raises(StreamIdError, match=words):
            ids.seen(peers[index])
    with pytest.raises(StreamIdError, match=f"the first message on stream {peers[6]} is DATA"):
        ids.check_seen(peers[6], "DATA")


@BOTH_ROLES
def test_ids_that_were_left_out_do_not_matter_where_the_wire_allows_it(role: Role) -> None:
    ids = StreamIds(role, strict=False)
    ids.peer_opened(id_of(other(role), 5))
    assert all(ids.seen(id_of(other(role), index)) for index in range(6))


@BOTH_ROLES
def test_so_many_gaps_are_remembered_and_no_more(role: Role) -> None:
    ids = StreamIds(role, strict=True)
    peers = [id_of(other(role), index) for index in range(2 * MAX_GAPS + 20)]
    for index in range(MAX_GAPS):
        ids.peer_opened(peers[2 * index + 1])
    for index in range(2 * MAX_GAPS, 2 * MAX_GAPS + 10):
        ids.peer_opened(peers[index])  # these leave nothing out
    with pytest.raises(StreamIdError):
        ids.seen(peers[0])
    ids.peer_opened(peers[2 * MAX_GAPS + 11])
    assert ids.seen(peers[0])
    with pytest.raises(StreamIdError):
        ids.seen(peers[2])


@BOTH_ROLES
def test_what_comes_behind_a_going_away_is_ignored(role: Role) -> None:
    ids = StreamIds(role, strict=True)
    ids.open()
    peers = [id_of(other(role), index) for index in range(4)]
    ids.peer_opened(peers[1])
    assert not any(ids.ignored(peer) for peer in peers)
    assert ids.go_away() == peers[2]
    assert [ids.ignored(peer) for peer in peers] == [False, False, True, True]
    assert not ids.ignored(id_of(role, 5))


@BOTH_ROLES
@pytest.mark.parametrize("opened", [0, 3])
def test_a_going_away_names_an_id_of_this_side_that_it_has_reached(role: Role, opened: int) -> None:
    ids = StreamIds(role, strict=True)
    for _ in range(opened):
        ids.open()
    for index in range(opened + 1):
        ids.check_go_away(id_of(role, index))
    for wrong in (id_of(role, opened + 1), id_of(other(role), 0), id_of(other(role), opened + 1)):
        words = f"GO_AWAY names stream {wrong}; the next one here would be {id_of(role, opened)}"
        with pytest.raises(StreamIdError, match=words):
            ids.check_go_away(wrong)
