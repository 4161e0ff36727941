"""Objects hear in a forked child that they are copies there, and only as long as they live."""

from __future__ import annotations

import gc
import logging
import os

import pytest

from wsmux.runtime import fork


class Heard:
    def __init__(self) -> None:
        self.forks = 0
        fork.register(self)

    def forked(self) -> None:
        self.forks += 1


def in_child(look: object) -> int:
    """Return the status of a child that exits with what ``look`` returns."""
    child = os.fork()
    if not child:
        os._exit(look())  # type: ignore[operator]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_each_object_hears_it_once_in_the_child_and_never_in_the_parent() -> None:
    one, other = Heard(), Heard()
    assert in_child(lambda: 10 * one.forks + other.forks) == 11
    assert (one.forks, other.forks) == (0, 0)


def test_a_child_of_a_child_is_another_fork() -> None:
    heard = Heard()
    assert in_child(lambda: 10 * heard.forks + in_child(lambda: heard.forks)) == 12


class Failing(Heard):
    def forked(self) -> None:
        super().forked()
        raise OSError("on purpose")


def test_one_that_fails_is_logged_and_the_others_hear_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "wsmux")
    failing = [Failing() for _ in range(5)]  # in any order

    def look() -> int:
        lines = [record.getMessage() for record in caplog.records]
        logged = sum("a Failing of the parent" in line for line in lines)
        return 10 * logged + sum(each.forks for each in failing)

    assert in_child(look) == 15  # of several alike, the log has one line


def test_what_is_gone_is_not_kept_for_it() -> None:
    before = len(fork._known)
    heard = Heard()
    assert len(fork._known) == before + 1
    del heard
    gc.collect()
    assert len(fork._known) <= before
