"""Count the bad inputs in the tables of these tests; none of them is accepted.

There are 561 at least. Each test below takes one row of a table at a time, and fails if it is
accepted, or refused otherwise than with a typed error. Of a table that several tests use, one is
named. Not counted: what people get wrong in arguments and options, failures of other programs, and
the inputs that Hypothesis makes up.
"""

from __future__ import annotations

import pytest

from ..tables import rows

TESTS = {
    "test_address": ["what_is_no_address_is_refused", "what_is_no_key_of_a_stream_is_refused"],
    "test_e2e": ["a_bad_cipher_is_refused", "nothing_is_read_from_a_bad_key"],
    "test_envelope": ["what_is_no_envelope_is_refused"],
    "test_federation_input": ["what_does_not_belong_here_is_refused"],
    "test_federation_post": [
        "what_is_no_http_is_a_failed_connection",
        "a_domain_that_names_no_host_is_refused",
    ],
    "test_keys": ["a_bad_secret_is_refused", "what_is_no_signature_is_invalid"],
    "test_link": ["a_bad_frame_ends_the_link_with_a_code_and_a_sentence"],
    "test_names": [
        "a_strange_command_is_refused",
        "a_command_that_names_a_system_queue_is_refused",
        "a_system_queue_takes_no_answers",
    ],
    "test_peer_json": [
        "a_request_needs",
        "a_wrong_request_is_refused",
        "what_is_no_object_is_refused",
        "a_response_needs",
        "a_wrong_response_is_refused",
        "a_wrong_error_is_refused",
    ],
    "test_receipt": ["a_bad_envelope_has_its_code"],
    "test_redis_threads": ["what_is_no_id_is_refused"],
    "test_relay_http": [
        "an_upgrade_without_a_token_is_400",
        "a_bad_upgrade_is_refused",
        "other_methods_are_405",
    ],
    "test_router": ["a_source_that_is_not_the_connection_is_refused"],
    "test_services": ["a_payload_that_is_no_json_is_refused"],
    "test_ss58": ["bad_text_is_refused", "bad_hexadecimal_is_refused"],
    "test_tokens": [
        "what_is_no_token_is_refused",
        "a_token_that_the_twin_did_not_sign_is_refused",
        "a_token_opens_no_other_twin",
    ],
    "test_twin_http": ["a_bad_answer_is_named_with_its_source"],
    "test_twin_sources": ["a_bad_file_is_named_with_its_mistake"],
    "test_twins": ["what_is_no_record_is_refused", "a_bad_member_is_refused"],
    "peer.test_uploads": [
        "a_wrong_wish_is_told",
        "a_wrong_offer_is_refused",
        "what_was_not_negotiated_is_refused",
        "no_name_of_another_is_used",
        "a_wrong_end_ends_the_upload",
    ],
}


# Here, as what modules leave behind when they are first imported belongs to no test.
ROWS = {
    f"{module}: {test}": rows(f"bus.{module}", test) for module in TESTS for test in TESTS[module]
}


@pytest.mark.parametrize("test", ROWS)
def test_no_table_is_empty(test: str) -> None:
    assert ROWS[test]


def test_there_are_as_many_as_is_said() -> None:
    assert sum(map(len, ROWS.values())) >= 561
