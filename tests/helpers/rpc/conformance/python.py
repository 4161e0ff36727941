"""Cases of the Python package; those of protocol v1.1 are here for what outlived it."""

from __future__ import annotations

from .shapes import Different, NotOurs, Ours

__all__ = ["DIFFERENT", "NOT_OURS", "OURS"]

_BACKOFF = "session/test_reconnect_limiter.py::"
_CALLS = "test_calls.py::"
_CODEGEN = "codegen/test_generator.py::"
_FRAMES = "test_client_frames.py::"
_KINDS = "test_kinds.py::"
_LEDGER = "session/test_send_buffer.py::"
_ROOM = "test_room.py::"
_SESSION = "session/test_session.py::"
_SPANS = "test_spans.py::"

_NUMBERS = f"{_LEDGER}test_numbers_start_at_zero_and_rise_by_one"
_SPAN = f"{_SPANS}test_a_call_is_a_span_at_both_ends"
_TYPED_CALLS = f"{_CODEGEN}test_each_method_calls_its_procedure"
_LEFT = f"{_FRAMES}test_leaving_a_call_cancels_it_in_one_message"
_DICTS = f"{_CODEGEN}test_typed_dicts_with_any_names"
_CLASSES = f"{_CODEGEN}test_dataclasses_with_any_names"
_WRITTEN = "test_records.py::test_what_was_read_is_written_as_it_came"
_FALLIBLE = f"{_KINDS}test_a_stream_goes_on_after_a_declared_error_and_ends_with_another"
_ANY_CODE = f"{_FRAMES}test_an_error_of_any_code_reaches_the_caller"

OURS: Ours = {
    "v2": {
        "test_connect": f"{_FRAMES}test_a_client_greets_first",
        "test_close_race": f"{_FRAMES}test_closing_from_many_threads_closes_once",
        "test_big_packet": f"{_KINDS}test_an_answer_may_be_as_large_as_a_message",
        "test_rpc": f"{_FRAMES}test_an_rpc_is_one_message_and_its_first_result_counts",
        "test_stream": (
            f"{_FRAMES}test_a_stream_is_messages_in_turn",
            f"{_FRAMES}test_each_message_acknowledges_what_has_come",
        ),
        "test_rpc_cancel": f"{_FRAMES}test_an_rpc_out_of_time_is_cancelled_in_one_message",
        "test_stream_cancel[send]": _LEFT,
        "test_stream_cancel[receive]": _LEFT,
        "test_subscription_cancel": _LEFT,
        "test_upload_cancel": _LEFT,
        "codegen: test_basic_rpc": f"{_CODEGEN}test_mypy_knows_the_types_of_calls",
        "codegen: test_basic_stream": f"{_CODEGEN}test_a_module_from_head_to_foot",
    },
    "v1 communication": {
        "test_rpc_method": f"{_CALLS}test_an_rpc_returns_its_response",
        "test_upload_method": f"{_CALLS}test_an_upload_is_answered_once",
        "test_upload_more_than_send_buffer_max": (
            f"{_KINDS}test_an_upload_may_be_larger_than_what_waits_for_acknowledgements"
        ),
        "test_upload_empty": f"{_CALLS}test_an_upload_of_nothing",
        "test_subscription_method": f"{_CALLS}test_a_subscription_ends_with_its_handler",
        "test_stream_method": f"{_CALLS}test_a_stream_goes_both_ways",
        "test_stream_empty": f"{_KINDS}test_a_stream_may_end_before_it_has_begun",
        "test_multiplexing": f"{_KINDS}test_kinds_share_a_session",
        "test_ignore_flood_subscription": (
            f"{_KINDS}test_a_subscription_that_nobody_reads_holds_nobody_up"
        ),
        "test_rpc_method_reconnect": (
            f"{_CALLS}test_a_session_outlives_its_connection",
            "test_connections.py::test_a_client_hears_of_its_connections_in_order",
        ),
    },
    "v1 handshake": {
        "test_handshake_timeout": ("test_connections.py::test_who_does_not_greet_is_hung_up_on"),
    },
    "v1 timeout": {
        "test_no_timeout": f"{_CALLS}test_an_rpc_returns_its_response",
    },
    "v1 message buffer": {
        "test_message_buffer_backpressure": (
            f"{_ROOM}test_a_writer_has_room_again_after_acknowledgements"
        ),
        "test_message_buffer_close": (
            f"{_ROOM}test_a_writer_that_waits_hears_of_the_end_of_the_client",
            f"{_SESSION}TestConnections::test_a_destroyed_session_is_empty",
        ),
    },
    "v1 rate limiter": {
        "test_initial_budget": f"{_BACKOFF}test_the_first_attempt_waits_nothing",
        "test_consume_budget": f"{_BACKOFF}test_attempts_are_counted",
        "test_restore_budget": (f"{_BACKOFF}test_a_success_forgives_attempts_down_to_none"),
    },
    "v1 seq manager": {
        "test_initial_sequence_and_ack_numbers": _NUMBERS,
        "test_sequence_number_increment": _NUMBERS,
        "test_message_reception": (
            f"{_LEDGER}test_the_wanted_number_is_accepted",
            f"{_LEDGER}test_a_lower_number_is_a_duplicate_and_changes_nothing",
            f"{_LEDGER}test_a_higher_number_is_a_gap_and_changes_nothing",
        ),
        "test_acknowledgment_setting": (
            f"{_LEDGER}test_a_message_carries_what_was_accepted_when_it_was_sent"
        ),
        "test_concurrent_access_to_sequence": f"{_CALLS}test_a_hundred_streams_at_once",
    },
    "v1 opentelemetry": {
        "test_rpc_method_span": _SPAN,
        "test_upload_method_span": _SPAN,
        "test_subscription_method_span": _SPAN,
        "test_stream_method_span": _SPAN,
        "test_stream_error_method_span": f"{_SPANS}test_an_error_within_a_stream_is_noted",
        "test_stream_method_span_generator_exit_not_recorded": (
            f"{_SPANS}test_a_call_that_its_caller_leaves_has_not_failed"
        ),
    },
    "v1 codegen": {
        "test_basic_rpc": _TYPED_CALLS,
        "test_rpc_timeout": _TYPED_CALLS,
        "test_special_chars_rpc": (_CLASSES, _TYPED_CALLS),
        "test_basic_stream": "test_records.py::test_a_stream_takes_and_gives_dataclasses",
        "test_error_stream[0]": f"{_CALLS}test_a_stream_goes_both_ways",
        "test_error_stream[1]": f"{_CALLS}test_a_stream_goes_both_ways",
        "test_error_stream[2]": _FALLIBLE,
        "test_error_stream[3]": _ANY_CODE,
        "test_anyof_mixed_types": f"{_CODEGEN}test_a_schema_as_a_type",
        "test_unknown_enum": (
            f"{_CODEGEN}test_branches_are_named_after_what_tells_them_apart",
            "test_records.py::test_what_does_not_fit_stays_as_it_is",
            _ANY_CODE,
        ),
        "test_unknown_enum_field_aliases": (
            "test_records.py::test_an_rpc_takes_and_gives_dataclasses"
        ),
        "test_pathological_types": f"{_CODEGEN}test_a_schema_as_a_type",
        "test_recursive_types": f"{_CODEGEN}test_recursive_types",
        "test_input_special_chars_basemodel": _CLASSES,
        "test_input_special_chars_typeddict": _DICTS,
        "test_init_special_chars_basemodel": _CLASSES,
        "test_init_special_chars_typeddict": _DICTS,
        "test_python_keyword_field_names_basemodel": _CLASSES,
        "test_python_keyword_field_names_typeddict": _DICTS,
        "parity: test_AiexecExecInit": _WRITTEN,
        "parity: test_AgenttoollanguageserverOpendocumentInput": _WRITTEN,
        "parity: test_ShellexecSpawnInput": _WRITTEN,
        "parity: test_ConmanfilesystemPersistInput": _WRITTEN,
        "parity: test_ReplspaceapiInitInput": _WRITTEN,
    },
}

_NUMBERED = "fields that would have the same name are told apart instead of refused"

DIFFERENT: Different = {
    "v1 timeout": {
        "test_timeout": (
            "it raises TimeoutError, as every time that runs out",
            (
                f"{_CALLS}test_a_call_out_of_time_is_cancelled",
                f"{_FRAMES}test_an_rpc_out_of_time_is_cancelled_in_one_message",
            ),
        ),
    },
    "v1 codegen": {
        "test_input_collision_error_basemodel": (_NUMBERED, _CLASSES),
        "test_input_collision_error_typeddict": (_NUMBERED, _DICTS),
        "test_field_name_collision_error": (_NUMBERED, _CLASSES),
    },
}

_HEADERS = "each call carries its own trace context; the upgrade has the headers that are given"

NOT_OURS: NotOurs = {
    "v1 rate limiter": {
        "test_concurrent_access": "a client has one count of attempts, under its mutex",
        "test_close": "nothing runs that would have to be closed: waits follow from the time",
    },
    "v1 opentelemetry": {
        "test_baggage_propagated_via_ws_headers": _HEADERS,
        "test_no_baggage_when_none_set": _HEADERS,
        "test_traceparent_propagated_via_ws_headers": _HEADERS,
    },
}
