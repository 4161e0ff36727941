"""What a sender of a file does next, whatever happens to its messages."""

from __future__ import annotations

import math

import pytest

from wsmux.bus.gateway.upload_progress import (
    FIRST,
    LONGEST,
    STALL,
    Ask,
    Close,
    Message,
    Place,
    UploadProgress,
    Wait,
    Write,
    read_tags,
)

SIZE, CHUNK, WINDOW = 50, 10, 30


def made(**options: bool) -> UploadProgress:
    return UploadProgress(SIZE, CHUNK, WINDOW, **options)


def begun(received: int = 0) -> UploadProgress:
    """Return one whose receiver has answered the first question at time 0."""
    progress = made()
    assert progress.next(0) == Ask(Place(0, 1))
    progress.answered({"acks": True, "resume": True, "received": received, "attempt": 1}, 0)
    return progress


def sent(progress: UploadProgress, now: float = 0) -> list[Message]:
    """Return all messages until it waits."""
    found = []
    while not progress.is_done():
        step = progress.next(now)
        if isinstance(step, Wait):
            break
        found.append(step)
        progress.sent(now)
    return found


def writes(attempt: int, *offsets: int) -> list[Message]:
    return [Write(Place(offset, attempt), CHUNK) for offset in offsets]


def ack(received: int, attempt: int = 1, **more: object) -> dict[str, object]:
    return {"received": received, "attempt": attempt} | more


def resume(received: int, attempt: int) -> dict[str, object]:
    return ack(received, attempt, resume=True)


def test_chunks_are_sent_as_they_are_acknowledged_and_then_the_end() -> None:
    progress = begun()
    assert sent(progress) == writes(1, 0, 10, 20)
    progress.answered(ack(10), 0)
    assert sent(progress) == writes(1, 30)
    progress.answered(ack(40), 0)
    assert sent(progress) == [*writes(1, 40), Close(Place(SIZE, 1))]
    assert not progress.is_done()
    for received in (50, 50, 40):
        progress.answered(ack(received), 0)
    assert sent(progress) == []
    progress.answered({"done": True, "attempt": 1}, 0)
    progress.answered(ack(0, missing=0), 0)
    progress.lost(0)
    assert progress.is_done()


def test_the_last_chunk_may_be_shorter_and_an_empty_file_has_none() -> None:
    odd = UploadProgress(12, CHUNK, WINDOW)
    sent(odd)
    odd.answered(resume(0, 1), 0)
    assert sent(odd)[1:] == [Write(Place(10, 1), 2), Close(Place(12, 1))]
    empty = UploadProgress(0, CHUNK, WINDOW)
    sent(empty)
    empty.answered(resume(0, 1), 0)
    assert sent(empty) == [Close(Place(0, 1))]


def test_a_question_without_an_answer_is_repeated_less_and_less_often() -> None:
    progress, now, waits = made(), 0.0, []
    for _ in range(6):
        assert sent(progress, now) == [Ask(Place(0, 1))]
        step = progress.next(now)
        assert isinstance(step, Wait)
        waits.append(step.until - now)
        now = step.until
    assert waits == [FIRST, 4, 8, LONGEST, LONGEST, LONGEST]


def test_after_a_lost_connection_it_goes_on_where_the_receiver_stands() -> None:
    progress = begun()
    sent(progress)
    progress.answered(ack(10), 0)
    progress.lost(1)
    assert sent(progress, 1) == [Ask(Place(0, 2))]
    progress.answered(resume(20, 2), 1)
    assert sent(progress, 1) == [*writes(2, 20, 30, 40), Close(Place(SIZE, 2))]


def test_a_question_that_may_be_lost_is_asked_at_once_again() -> None:
    progress = made()
    assert sent(progress) == [Ask(Place(0, 1))]
    progress.lost(1)
    assert sent(progress, 1) == [Ask(Place(0, 1))]


def test_a_lost_end_or_its_lost_answer_is_noticed() -> None:
    progress = begun(SIZE)
    assert sent(progress) == [Close(Place(SIZE, 1))]
    assert progress.next(0) == Wait(STALL)
    assert sent(progress, STALL) == [Ask(Place(0, 2))]
    progress.answered(resume(SIZE, 2), STALL)  # the end was lost
    assert sent(progress, STALL) == [Close(Place(SIZE, 2))]
    assert sent(progress, 2 * STALL) == [Ask(Place(0, 3))]
    progress.answered({"done": True, "attempt": 3}, 2 * STALL)  # the answer was lost
    assert progress.is_done()


def test_lost_chunks_are_noticed_by_silence_that_begins_with_the_last_message() -> None:
    progress = begun()
    step = progress.next(0)
    assert isinstance(step, Write)
    progress.sent(5)  # a relay took long to take it
    assert progress.next(5) == Write(Place(10, 1), CHUNK)
    progress.sent(5)
    sent(progress, 6)
    assert sent(progress, 6 + STALL - 0.1) == []
    assert sent(progress, 6 + STALL) == [Ask(Place(0, 2))]


def test_one_lost_chunk_is_sent_again_once_though_many_reports_come() -> None:
    progress = begun()
    sent(progress)
    for _ in range(3):
        progress.answered(ack(10, missing=10), 0)
    assert sent(progress) == [Ask(Place(0, 2))]
    progress.answered(resume(10, 2), 0)
    assert sent(progress) == writes(2, 10, 20, 30)
    progress.answered(ack(10, missing=10), 0)  # of the first attempt
    assert sent(progress) == []


def test_a_receiver_that_was_restarted_gets_all_from_the_start() -> None:
    progress = begun()
    sent(progress)
    progress.answered(ack(30), 0)
    sent(progress)
    progress.answered(ack(0, missing=0), 0)
    assert sent(progress) == [Ask(Place(0, 2))]
    progress.answered(resume(0, 2), 0)
    progress.answered(ack(40, 1), 0)  # of its former life
    assert sent(progress) == writes(2, 0, 10, 20)


def test_a_receiver_that_misses_everything_does_not_keep_the_sender_busy() -> None:
    progress, now, questions = begun(), 0.0, 0
    while now < 60:
        step = progress.next(now)
        if isinstance(step, Wait):
            now = step.until
        elif isinstance(step, Ask):
            questions += 1
            progress.answered(resume(0, step.place.attempt), now)
        else:
            progress.answered(ack(0, step.place.attempt, missing=0), now)
    assert questions < 15


def test_a_receiver_that_takes_each_chunk_once_is_asked_no_more() -> None:
    progress = made()
    sent(progress)
    progress.answered({"acks": True}, 0)
    assert sent(progress) == writes(1, 0, 10, 20)
    progress.lost(1)
    assert not progress.delay(1)
    assert progress.next(100) == Wait(math.inf)
    progress.answered({"received": "50"}, 100)
    assert sent(progress, 100) == []
    progress.answered({"received": 50}, 100)
    assert sent(progress, 100) == [*writes(1, 30, 40), Close(Place(SIZE, 1))]
    assert not progress.is_done()
    progress.answered({"done": True}, 100)
    assert progress.is_done()


def test_a_receiver_that_confirms_nothing_is_sent_everything_at_once() -> None:
    progress = made()
    sent(progress)
    progress.answered({}, 0)
    assert sent(progress) == [*writes(1, 0, 10, 20, 30, 40), Close(Place(SIZE, 1))]
    assert progress.is_done()


def test_the_answer_of_a_service_is_none_of_the_receiver() -> None:
    progress = begun()
    progress.answered({}, 0)
    progress.answered({"received": 99}, 0)
    assert sent(progress) == writes(1, 0, 10, 20)


@pytest.mark.parametrize(
    "said",
    [
        {"attempt": 1},
        {"attempt": 1, "received": "5", "resume": True},
        {"attempt": 1, "received": True, "resume": True},
        {"attempt": "1", "received": 5, "resume": True},
        {"attempt": 2, "received": 5, "resume": True},
        {"attempt": 1, "received": 5},
        {"attempt": 1, "received": 5, "missing": 5},
    ],
)
def test_what_answers_no_question_ends_none(said: dict[str, object]) -> None:
    progress = made()
    sent(progress)
    progress.answered(said, 0)
    assert sent(progress, FIRST) == [Ask(Place(0, 1))]


@pytest.mark.parametrize(("received", "offset"), [(-5, 0), (10**15, SIZE)])
def test_no_receiver_leads_it_out_of_the_file(received: int, offset: int) -> None:
    first = sent(begun(received))[0]
    assert not isinstance(first, Wait)
    assert first.place.offset == offset


def test_a_message_that_cannot_be_sent_now_is_sent_later() -> None:
    progress = begun()
    sent(progress)
    assert progress.delay(0)
    step = progress.next(0)
    assert isinstance(step, Wait)
    assert step.until > 0
    assert sent(progress, step.until) == [Ask(Place(0, 2))]
    assert made().delay(0)


def test_a_relays_error_counts_while_it_can_be_about_one_message_only() -> None:
    progress = made()
    assert progress.was_sent_once()
    sent(progress)
    assert progress.was_sent_once()
    sent(progress, FIRST)
    assert not progress.was_sent_once()
    assert not begun().was_sent_once()
    resumed = made(resumed=True)
    sent(resumed)
    assert not resumed.was_sent_once()


@pytest.mark.parametrize(
    ("tags", "place"),
    [
        ("offset=5,attempt=2", Place(5, 2)),
        ("fail-fast, offset=5,attempt=2 more", Place(5, 2)),
        ("", None),
        ("offset=5", None),
        ("offset=-5,attempt=2", None),
        ("xoffset=5,attempt=2", None),
        ("offset=5,attempt=2x", None),
        ("offset=٥,attempt=2", None),
        (f"offset={10**15},attempt=2", None),
    ],
)
def test_tags_name_a_place(tags: str, place: Place | None) -> None:
    assert read_tags(tags) == place
    if place is not None:
        assert read_tags(place.tags()) == place
