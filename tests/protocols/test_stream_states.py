"""Every pair of a state and an input is a listed move or an error."""

from __future__ import annotations

from itertools import product

import pytest

from wsmux.protocols.stream_states import (
    READ_TABLE,
    WRITE_TABLE,
    ReadInput,
    ReadState,
    WriteInput,
    WriteState,
    advance_read,
    advance_write,
)

from ..helpers.tables import each_case

# Written from the diagram, by name, apart from the tables.
WRITE_MOVES = {
    "OPEN": "DATA>OPEN DEFER>CLOSING CLOSE>CLOSED RESET>RESET PEER_STOP>STOPPED",
    "CLOSING": "DEFER>CLOSING CLOSE>CLOSED RESET>RESET PEER_STOP>STOPPED",
    "CLOSED": "DEFER>CLOSED CLOSE>CLOSED RESET>CLOSED PEER_STOP>CLOSED",
    "RESET": "DEFER>RESET CLOSE>RESET RESET>RESET PEER_STOP>RESET",
    "STOPPED": "DEFER>STOPPED CLOSE>STOPPED RESET>STOPPED PEER_STOP>STOPPED",
}
READ_MOVES = {
    "OPEN": "DATA>OPEN STOP>STOPPED PEER_CLOSE>ENDED PEER_RESET>ABORTED",
    "STOPPED": "DATA>STOPPED STOP>STOPPED PEER_CLOSE>FORGOTTEN PEER_RESET>FORGOTTEN",
    "ENDED": "STOP>ENDED PEER_CLOSE>ENDED PEER_RESET>ENDED",
    "ABORTED": "STOP>ABORTED PEER_CLOSE>ABORTED PEER_RESET>ABORTED",
    "FORGOTTEN": "STOP>FORGOTTEN PEER_CLOSE>FORGOTTEN PEER_RESET>FORGOTTEN",
}


def listed(moves: dict[str, str]) -> dict[tuple[str, str], str]:
    return {
        (state, happened): after
        for state, line in moves.items()
        for happened, after in (move.split(">") for move in line.split())
    }


WRITE_LEGAL, READ_LEGAL = listed(WRITE_MOVES), listed(READ_MOVES)


@each_case
@pytest.mark.parametrize(("state", "happened"), list(product(WriteState, WriteInput)))
def test_writing_half_moves_as_listed_or_not_at_all(
    state: WriteState, happened: WriteInput
) -> None:
    before = dict(WRITE_TABLE)
    expected = WRITE_LEGAL.get((state.name, happened.name))
    if expected is None:
        with pytest.raises(KeyError):
            advance_write(state, happened)
    else:
        assert advance_write(state, happened) is WriteState[expected]
    assert before == WRITE_TABLE


@each_case
@pytest.mark.parametrize(("state", "happened"), list(product(ReadState, ReadInput)))
def test_reading_half_moves_as_listed_or_not_at_all(state: ReadState, happened: ReadInput) -> None:
    before = dict(READ_TABLE)
    expected = READ_LEGAL.get((state.name, happened.name))
    if expected is None:
        with pytest.raises(KeyError):
            advance_read(state, happened)
    else:
        assert advance_read(state, happened) is ReadState[expected]
    assert before == READ_TABLE


@pytest.mark.parametrize("state", [state for state in WriteState if state is not WriteState.OPEN])
def test_writing_half_never_opens_again(state: WriteState) -> None:
    assert WriteState.OPEN not in {
        after for (before, _), after in WRITE_TABLE.items() if before is state
    }


@pytest.mark.parametrize("state", [state for state in ReadState if state is not ReadState.OPEN])
def test_reading_half_never_opens_again(state: ReadState) -> None:
    assert ReadState.OPEN not in {
        after for (before, _), after in READ_TABLE.items() if before is state
    }
