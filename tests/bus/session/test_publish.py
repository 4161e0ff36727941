"""The record of the own twin: compared, written where that is possible, else told."""

from __future__ import annotations

import pytest

from wsmux.bus.session.publish import publish

from ...helpers.bus.people import DOMAIN, person, table_of

ALICE = person(1)


def test_a_right_record_is_left_alone() -> None:
    twins = table_of(ALICE)
    twins.twins[1] = ALICE.record(relays=("b.test", "a.test"))
    assert publish(ALICE.identity, 1, ("a.test", "b.test"), twins, lambda _: False)
    assert twins.twins[1].relays == ("b.test", "a.test")


@pytest.mark.parametrize(("key", "relays"), [(False, (DOMAIN,)), (True, ()), (True, ("x.test",))])
def test_a_wrong_record_is_written(key: bool, relays: tuple[str, ...]) -> None:
    twins = table_of(ALICE)
    twins.writable = True
    twins.twins[1] = ALICE.record(relays=relays, key=key)
    assert publish(ALICE.identity, 1, (DOMAIN,), twins, lambda _: False)
    assert twins.twins[1] == ALICE.record()


def test_a_record_that_cannot_be_written_is_told(caplog: pytest.LogCaptureFixture) -> None:
    twins = table_of(ALICE, keys=False)
    assert not publish(ALICE.identity, 1, (DOMAIN,), twins, lambda _: False)
    assert f'"pk": "0x{ALICE.identity.e2e_public.hex()}"' in caplog.text


def test_a_twin_without_a_record_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert not publish(ALICE.identity, 7, (DOMAIN,), table_of(ALICE), lambda _: False)
    assert "no twin 7" in caplog.text


def test_a_directory_that_is_down_is_asked_again() -> None:
    twins = table_of(ALICE)
    twins.down = True
    waits: list[float] = []

    def pause(seconds: float) -> bool:
        waits.append(seconds)
        twins.down = len(waits) < 9
        return True

    assert publish(ALICE.identity, 1, (DOMAIN,), twins, pause)
    longest = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, longest, strict=True))


def test_who_closes_is_not_held_up_by_a_directory() -> None:
    twins = table_of(ALICE)
    twins.down = True
    assert not publish(ALICE.identity, 1, (DOMAIN,), twins, lambda _: False)
