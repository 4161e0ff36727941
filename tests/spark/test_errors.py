"""Errors fit on one line, and are found again in what Spark makes of it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from wsmux.spark import SparkError, error_from
from wsmux.spark.errors import MOST_TEXT, hide, place, shown_url

WHERE = {"url": "ws://h:1/", "partition": 3, "attempt": 1, "inflight": 12}

# As Spark 4 tells of a failed task; what comes before and behind the line is its own.
SPARK_TEXT = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 3 times, most recent \
failure: Lost task 0.2 in stage 1.0 (TID 5) (localhost executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/pyspark/worker.py", line 1, in main
    process()
wsmux.rpc.errors.RiverError: BAD: earlier

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/site-packages/wsmux/spark/rowcalls.py", line 9, in __call__
    raise asking.error(errors[first])
{line}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
Driver stacktrace:"""


def test_an_error_is_one_line() -> None:
    error = SparkError("BAD", "two\nlines \tof text", "geo.lookup", WHERE)
    assert str(error) == (
        "[BAD] geo.lookup: two lines of text (url=ws://h:1/ partition=3 attempt=1 inflight=12)"
    )


def test_an_error_without_a_place_or_a_name() -> None:
    assert str(SparkError("BAD", "odd")) == "[BAD] odd"


def test_an_error_pickles_with_its_fields() -> None:
    error = SparkError("BAD", "odd", "a.b", WHERE)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.message, copy.what, copy.place) == (
        str(error),
        "BAD",
        "odd",
        "a.b",
        WHERE,
    )


def test_a_long_text_is_cut() -> None:
    assert len(str(SparkError("BAD", "x" * 10 * MOST_TEXT))) < MOST_TEXT + 20


@pytest.mark.parametrize(
    ("what", "message", "where"),
    [
        ("geo.lookup", "no such place", WHERE),
        ("geo.lookup", "a (strange) text (a=b", {"partition": 0}),
        ("stream read", "with: colons: in it", {}),
        ("a.b", "", {"url": "ws://a b/(x)"}),
    ],
)
def test_an_error_is_found_in_spark_s_text(what: str, message: str, where: dict[str, Any]) -> None:
    error = SparkError("BAD", message, what, where)
    text = SPARK_TEXT.replace("{line}", f"wsmux.spark.errors.SparkError: {error}")
    found = error_from(RuntimeError(text))
    assert found is not None
    assert (found.code, found.what, found.message) == ("BAD", what, message)
    assert str(found) == str(error)


def test_the_last_error_is_the_one() -> None:
    lines = "\n".join(f"x.SparkError: [C{i}] a: b (partition={i})" for i in range(3))
    found = error_from(RuntimeError(lines))
    assert found is not None
    assert (found.code, found.place) == ("C2", {"partition": "2"})


def test_an_error_of_ours_is_itself() -> None:
    error = SparkError("BAD", "odd")
    assert error_from(error) is error


def test_other_errors_are_none_of_ours() -> None:
    assert error_from(RuntimeError(SPARK_TEXT)) is None


def test_a_format_that_spark_did_not_find_is_told_with_what_to_do() -> None:
    """Spark looks formats up in a worker, and says no more than this when that was killed."""
    text = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: {}. Make sure the provider name"
    found = error_from(RuntimeError(text.format("wsmux")))
    assert found is not None
    assert (found.code, found.what) == ("DATA_SOURCE_NOT_FOUND", 'format("wsmux")')
    assert "was killed, or has no wsmux; run it again after wsmux.spark.register(spark)" in str(
        found
    )
    assert error_from(RuntimeError(text.format("kafka"))) is None


def test_an_address_is_shown_without_secrets() -> None:
    assert shown_url("wss://me:pass@host:1/a?token=x#y") == "wss://host:1/a"


def test_a_place_outside_of_spark_is_the_address() -> None:
    assert place("ws://h/?q", inflight=1) == {"url": "ws://h/", "inflight": 1}


def test_a_secret_is_hidden_wherever_it_stands() -> None:
    assert hide("a secret b secret", "secret") == "a *** b ***"
    assert hide("text", "") == "text"
