"""Let every record through the guard of the loggers, and see what is left of it."""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest

from wsmux.runtime import logs
from wsmux.runtime.logs import MAX_CAUSES, MAX_TRACEBACK, MAX_VALUE, PAUSE, logger, printable

from ..helpers.tables import each_case

PACKAGE = Path(logs.__file__).parents[1]
NAME = "wsmux.test-logs"


class Written:
    """Hold what a handler with the usual format wrote."""

    def __init__(self) -> None:
        self._text = StringIO()
        self.handler = logging.StreamHandler(self._text)
        self.handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    @property
    def lines(self) -> list[str]:
        return self._text.getvalue().split("\n")[:-1]


@pytest.fixture
def written() -> Iterator[Written]:
    made, log = Written(), logging.getLogger(NAME)
    log.addHandler(made.handler)
    log.setLevel(logging.DEBUG)
    yield made
    log.removeHandler(made.handler)
    log.setLevel(logging.NOTSET)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what moves the time that the loggers see."""
    now = [1000.0]
    monkeypatch.setattr("wsmux.runtime.logs.time.monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


log = logger(NAME)


def test_a_cause_has_one_line_a_second_and_the_next_tells_what_was_left_out(
    written: Written, clock: Callable[[float], None]
) -> None:
    for moment in range(30):
        log.warning("peer %d is bad", moment)
        clock(PAUSE / 10)
    assert written.lines == [
        f"WARNING {NAME} peer 0 is bad",
        f"WARNING {NAME} peer 10 is bad (9 more like it were left out)",
        f"WARNING {NAME} peer 20 is bad (9 more like it were left out)",
    ]


def test_a_line_without_arguments_tells_it_too(
    written: Written, clock: Callable[[float], None]
) -> None:
    for _ in range(3):
        log.info("100 % full")
    clock(PAUSE)
    log.info("100 % full")
    assert written.lines[1:] == [f"INFO {NAME} 100 % full (2 more like it were left out)"]


def test_causes_do_not_count_together(written: Written) -> None:
    log.info("one: %s", 1)
    log.info("two: %s", 1)
    assert len(written.lines) == 2


def test_every_line_for_debugging_passes(written: Written) -> None:
    for number in range(100):
        log.debug("%d", number)
    assert len(written.lines) == 100


def fail_here(error: Exception) -> None:
    try:
        raise error
    except Exception:
        log.exception("it failed")


def fail_there(error: Exception) -> None:
    try:
        raise error
    except Exception:
        log.exception("it failed")


def test_exceptions_of_another_class_or_place_are_causes_of_their_own(written: Written) -> None:
    for _ in range(10):
        fail_here(ValueError("x"))
        fail_here(TypeError("x"))
        fail_there(ValueError("x"))
    assert sum(line.endswith(" it failed") for line in written.lines) == 3


def test_causes_remembered_are_bounded(clock: Callable[[float], None], written: Written) -> None:
    for number in range(MAX_CAUSES + 10):
        log.info(f"cause {number}")  # noqa: G004 - a cause each
    assert len(logs._guard._causes) == MAX_CAUSES
    assert len(written.lines) == MAX_CAUSES + 10


FORGED = "x\nCRITICAL root forged\r\x1b[2J\x85\u2028\u202e\x9b\udc80\0"


@pytest.mark.parametrize("form", ["%s", "%r", "%-5s|"])
@pytest.mark.parametrize("kind", [str, ValueError, lambda text: [text]], ids=["text", "error", "r"])
def test_a_value_cannot_end_the_line_or_move_the_cursor(
    written: Written, form: str, kind: Callable[[str], object]
) -> None:
    log.warning(f"bad: {form}", kind(FORGED))  # noqa: G004 - a form each
    assert len(written.lines) == 1
    assert written.lines[0].isprintable()
    assert "CRITICAL root forged" in written.lines[0]


def test_what_the_application_says_passes_as_it_is(written: Written) -> None:
    for _ in range(5):
        log.error("%s", "a\nb" * MAX_VALUE, extra=logs.VERBATIM)
    assert "\n".join(written.lines).count("a\nb" * MAX_VALUE) == 5


def test_what_its_caller_bounds_is_escaped_and_not_counted(written: Written) -> None:
    for number in range(5):
        log.warning("%s", f"{number}\n", extra=logs.PACED)
    assert written.lines == [f"WARNING {NAME} {number}\\n" for number in range(5)]


def test_numbers_stay_numbers(written: Written) -> None:
    log.info("%d %.1f %04x", 1, 2.0, 255)
    assert written.lines == [f"INFO {NAME} 1 2.0 00ff"]


def test_a_value_of_megabytes_is_cut(written: Written) -> None:
    log.info("%s and %r", "a" * 2**20, "b" * 2**20)
    assert len(written.lines[0]) < 2 * MAX_VALUE + 200
    assert f"({2**20 - MAX_VALUE} more characters)" in written.lines[0]


def test_the_lines_of_a_traceback_are_marked_and_cut(written: Written) -> None:
    fail_here(ValueError(FORGED + "\n".join(["CRITICAL root forged"] * 20_000)))
    head, *rest = written.lines
    assert head == f"ERROR {NAME} it failed"
    assert all(line.startswith("  | ") for line in rest)
    assert all(line.isprintable() for line in rest)
    assert sum(map(len, rest)) < 2 * MAX_TRACEBACK
    fail_there(ValueError("short"))
    assert written.lines[-1] == "  | ValueError: short"


def test_a_line_with_names_instead_of_positions_passes(written: Written) -> None:
    log.info("%(a)s", {"a": 1})
    assert written.lines == [f"INFO {NAME} 1"]


def test_an_exception_line_outside_of_a_handler_passes(written: Written) -> None:
    log.error("nothing is raised", exc_info=True)
    assert written.lines[0] == f"ERROR {NAME} nothing is raised"


@pytest.mark.parametrize("text", ["plain", "größe €", "", "a b"])
def test_what_prints_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_a_forked_child_logs_though_a_thread_of_the_parent_was_about_to() -> None:
    with logs._guard._lock:
        child = os.fork()
        if child == 0:
            acquired = logs._guard._lock.acquire(blocking=False)
            os._exit(0 if acquired and not logs._guard._causes else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_module_makes_a_logger_by_itself() -> None:
    made = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "getLogger" in path.read_text()
    ]
    # The others are a program, which sets the level of what is not ours, and what handlers log by.
    allowed = ["cli/demo_server.py", "rpc/engine/server_calls.py", "runtime/logs.py"]
    assert sorted(made) == allowed


def test_no_module_logs_a_text_that_it_made_itself() -> None:
    """A text with values in it would be a cause each time, and its values would not be cut."""
    levels = {"debug", "info", "warning", "error", "exception", "critical"}
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if "_log = logger(" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="_log"), attr=level), args=[said, *_]
                ) if level in levels and isinstance(said, ast.JoinedStr | ast.BinOp):
                    wrong.append(f"{path.name}:{node.lineno}")
    assert not wrong


@each_case
@pytest.mark.parametrize("row", range(3))
def test_a_row_of_a_table_finds_the_log_empty(row: int, caplog: pytest.LogCaptureFixture) -> None:
    assert not caplog.records
    logger("wsmux.test-rows").warning("row %d", row)
    assert caplog.messages == [f"row {row}"]
