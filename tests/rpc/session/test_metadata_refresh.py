"""A server asks for new metadata in time, and does not wait for them beyond the old ones' life."""

from __future__ import annotations

from wsmux.rpc.options import Options
from wsmux.rpc.session.metadata_refresh import MetadataRefresh, RefreshLapse


def refresh(expires: float | None = None) -> MetadataRefresh:
    made = MetadataRefresh(Options(handshake_timeout=2))
    made.validated(expires)
    return made


def test_metadata_that_never_expire_are_never_asked_for() -> None:
    assert (refresh().next_timer(), refresh().handle_timer(1e9)) == (None, None)


def test_the_client_is_asked_one_handshake_timeout_before_they_expire() -> None:
    made = refresh(10.0)
    assert (made.next_timer(), made.handle_timer(7.9)) == (8.0, None)
    assert made.handle_timer(8.0) is RefreshLapse.ASK


def test_an_answer_has_the_handshake_timeout() -> None:
    made = refresh(100.0)
    assert made.ask(5.0)
    assert (made.next_timer(), made.handle_timer(6.9)) == (7.0, None)
    assert made.handle_timer(7.0) is RefreshLapse.OVERDUE


def test_an_answer_has_no_longer_than_the_old_ones_live() -> None:
    made = refresh(10.0)
    assert made.ask(9.5)
    assert made.next_timer() == 10.0


def test_asking_without_an_expiry_has_the_handshake_timeout() -> None:
    made = refresh()
    assert made.ask(5.0)
    assert made.next_timer() == 7.0


def test_new_metadata_start_the_next_round() -> None:
    made = refresh(10.0)
    assert made.ask(8.0)
    made.answered()
    made.validated(20.0)
    assert made.next_timer() == 18.0


def test_a_request_that_is_unanswered_counts_for_a_further_one() -> None:
    made = refresh()
    assert [made.ask(5.0), made.ask(6.0)] == [True, False]
    assert made.next_timer() == 7.0


def test_the_answer_stops_the_clock_however_long_it_is_validated() -> None:
    made = refresh(10.0)
    assert made.ask(8.0)
    made.answered()
    assert made.next_timer() is None


def test_whoever_is_asked_while_an_answer_is_validated_answers_in_time() -> None:
    made = refresh(10.0)
    assert made.ask(5.0)
    made.answered()
    assert made.ask(6.0)
    made.validated(20.0)  # the first answer
    assert made.next_timer() == 8.0
    assert made.handle_timer(8.0) is RefreshLapse.OVERDUE
    made.answered()
    made.validated(30.0)
    assert made.next_timer() == 28.0


def test_a_validation_that_outlasts_the_old_ones_costs_no_time_to_answer() -> None:
    made = refresh(10.0)
    assert made.ask(8.0)
    made.answered()
    assert made.ask(11.0)
    assert (made.next_timer(), made.handle_timer(11.0)) == (13.0, None)


def test_a_lost_connection_stops_the_clock() -> None:
    made = refresh(10.0)
    assert made.ask(8.0)
    made.stop()
    assert made.next_timer() is None
