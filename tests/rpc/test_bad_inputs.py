"""Count the bad inputs in the tables of these tests; none of them is accepted.

Each test below takes one row of a table at a time, in JSON or msgpack or both, and checks the
reaction that the text, or the shipped code, has for it. Not counted: what people get wrong in
arguments and options, what Hypothesis makes up, and the same row again in another role or carrier.
"""

from __future__ import annotations

import pytest

from ..tables import rows

LEAST = 951

TESTS = {
    "test_bad_answers": ["reaction", "what_is_no_result_is_dropped_with_a_line_in_the_log"],
    "test_bad_handshakes": [
        "a_wrong_handshake",
        "counters_that_exclude_each_other_leave_the_session_alone",
        "a_guessed_session_of_a_live_client_is_refused",
    ],
    "test_bad_messages": ["reaction", "what_is_no_number"],
    "test_bad_welcomes": ["an_answer_after_which_the_client_gives_up"],
    "test_json_malformed": ["refused"],
    "test_msgpack_malformed": ["refused"],
}

# Here, as what modules leave behind when they are first imported belongs to no test.
ROWS = {
    f"{module}: {test}": rows(f"rpc.{module}", test) for module in TESTS for test in TESTS[module]
}


@pytest.mark.parametrize("test", ROWS)
def test_no_table_is_empty(test: str) -> None:
    assert ROWS[test]


def test_there_are_as_many_as_is_said() -> None:
    assert sum(map(len, ROWS.values())) >= LEAST
