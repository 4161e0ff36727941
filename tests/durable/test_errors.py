"""The errors of durable streams keep their fields and words, also through a pickle."""

from __future__ import annotations

import pickle

import pytest

import wsmux
from wsmux.durable import DurableError, DurableInterrupted, DurableLost, DurableRefused, Refusal


@pytest.mark.parametrize(
    "error",
    [
        DurableError("something"),
        DurableInterrupted("the sender left"),
        DurableLost("a", 4, 8, 16),
        DurableLost("a", 20, 8, 16),
        DurableRefused(Refusal.DIGEST, "it is another one"),
        DurableRefused(Refusal.BUSY, "later", "remote"),
    ],
    ids=str,
)
def test_an_error_survives_a_pickle(error: DurableError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert isinstance(error, wsmux.WsmuxError)


def test_a_refusal_says_who_refuses_and_whether_later_is_better() -> None:
    ours, theirs = (DurableRefused(Refusal.NO_SPACE, "full", side) for side in ("local", "remote"))
    assert str(ours) == "this side refuses the durable stream (no_space): full"
    assert str(theirs) == "the receiver refuses the durable stream (no_space): full"
    assert ours.temporary
    assert not DurableRefused(Refusal.DIGEST, "").temporary
