"""Events are values: immutable, hashable, and each of a kind that their owner can name."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from wsmux.protocols import events
from wsmux.protocols.events import Event, StreamEnded, StreamFinished

from ..helpers.tables import each_case

KINDS: tuple[Any, ...] = get_args(Event)
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def made(kind: Any) -> Any:
    """Return an event of a kind, whose fields are numbers."""
    return kind._make(range(len(kind._fields)))


def test_every_event_that_is_offered_is_one_that_a_machine_reports() -> None:
    assert {kind.__name__ for kind in KINDS} == {*events.__all__} - {"Event"}


@each_case
@EACH
def test_an_event_cannot_be_changed(kind: Any) -> None:
    event = made(kind)
    for name in (*kind._fields, "further"):
        with pytest.raises(AttributeError):
            setattr(event, name, 5)


@each_case
@EACH
def test_an_event_is_equal_to_its_like_and_hashes_as_it(kind: Any) -> None:
    assert made(kind) == made(kind)
    assert len({made(kind), made(kind)}) == 1


@each_case
@EACH
def test_what_belongs_to_a_stream_names_it_first(kind: Any) -> None:
    assert "stream_id" not in kind._fields[1:]
    assert kind._fields[:1] in {("stream_id",), ("first_refused",), ()}


def test_the_tests_of_the_machines_tell_kinds_apart() -> None:
    """As tuples they would be equal."""
    assert StreamEnded(1) != StreamFinished(1)
    assert [StreamEnded(1)] != [StreamFinished(1)]
    assert tuple(StreamEnded(1)) == tuple(StreamFinished(1))
