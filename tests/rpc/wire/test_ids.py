"""Ids are told apart, also those of a process and its children."""

from __future__ import annotations

import os

from wsmux.rpc.wire.ids import ID_LENGTH, STOCK, new_id


def test_ids_differ_and_are_of_one_length() -> None:
    made = [new_id() for _ in range(3 * STOCK)]
    assert len(set(made)) == len(made)
    assert {len(each) for each in made} == {ID_LENGTH}


def test_a_forked_child_makes_ids_of_its_own() -> None:
    new_id()  # now there is a stock
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, "".join(new_id() for _ in range(STOCK)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    text = os.read(reading, 2 * STOCK * ID_LENGTH).decode()
    os.close(reading)
    os.close(writing)
    theirs = {text[at : at + ID_LENGTH] for at in range(0, len(text), ID_LENGTH)}
    assert len(theirs) == STOCK
    assert theirs.isdisjoint({new_id() for _ in range(2 * STOCK)})
