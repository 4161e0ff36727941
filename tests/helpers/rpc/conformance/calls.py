"""Cases about calls: what they do, how they end, what their handlers are given."""

from __future__ import annotations

from .shapes import Different, NotOurs, Ours

__all__ = ["DIFFERENT", "NOT_OURS", "OURS"]

_CALLS = "test_calls.py::"
_CONTEXT = "test_context.py::"
_DEFERRED = "test_deferred.py::"
_ENDS = "test_ends.py::"
_INVALID = "test_invalid_requests.py::"
_KINDS = "test_kinds.py::"
_LOST = "test_lost_calls.py::"
_METADATA = "test_new_metadata.py::"
_RECONNECTING = "session/test_reconnecting.py::"

_IGNORES = f"{_KINDS}test_a_stream_need_not_answer_each_request"
_FALLIBLE = f"{_KINDS}test_a_stream_goes_on_after_a_declared_error_and_ends_with_another"
_CLIENT_CANCELS = f"{_ENDS}test_a_client_cancels"
_SERVER_CANCELS = f"{_ENDS}test_a_server_cancels"
_CANCELS = f"{_ENDS}test_cancelling_ends_a_call_whose_handler_goes_on"
_FORGOTTEN = f"{_ENDS}test_neither_side_remembers_a_call_that_is_over"
_EACH_KIND = f"{_DEFERRED}test_it_runs_whatever_the_kind"
_MIDDLEWARE = f"{_CONTEXT}test_middleware_is_called_once_for_each_call_and_told_of_it"
_CLOSED = f"{_ENDS}test_calls_of_a_closed_client_have_their_shape"
_NAMES = f"{_INVALID}test_the_first_message_must_name_a_procedure"

OURS: Ours = {
    "e2e": {
        "rpc": f"{_CALLS}test_an_rpc_returns_its_response",
        "fallible rpc": f"{_KINDS}test_an_rpc_may_fail_with_a_declared_error",
        "rpc with binary (uint8array)": (
            f"{_CALLS}test_bytes_and_large_numbers_arrive_as_they_are"
        ),
        "stream": _IGNORES,
        "stream empty": f"{_KINDS}test_a_stream_may_end_before_it_has_begun",
        "stream idempotent close": f"{_KINDS}test_a_stream_may_be_ended_twice",
        "stream with init message": f"{_KINDS}test_a_stream_has_an_init",
        "fallible stream": _FALLIBLE,
        "subscription": f"{_KINDS}test_a_subscription_tells_of_each_change",
        "subscription idempotent close": f"{_ENDS}test_cancelling_again_changes_nothing",
        "upload": f"{_KINDS}test_an_upload_is_answered_when_it_is_finished",
        "upload empty": f"{_CALLS}test_an_upload_of_nothing",
        "upload server cancel": (
            _SERVER_CANCELS,
            f"{_ENDS}test_what_a_cancelled_handler_returns_is_nobodys",
        ),
        "upload with init message": f"{_KINDS}test_an_upload_has_an_init",
        "message order is preserved in the face of disconnects": (
            f"{_LOST}test_calls_keep_their_order_over_connections_that_are_cut",
            "session/test_session_cuts.py::test_a_cut_at_any_frame_loses_and_repeats_nothing",
        ),
        "concurrent rpcs": f"{_KINDS}test_rpcs_at_once_have_their_own_answers",
        "concurrent streams": f"{_KINDS}test_streams_at_once_have_their_own_answers",
        "defaultCallOptions provides signal when caller omits it": (
            "test_abort.py::test_a_client_has_an_event_for_calls_without_their_own"
        ),
        "caller-supplied signal overrides defaultCallOptions": (
            "test_abort.py::test_the_own_event_of_a_call_comes_first"
        ),
        "function-form defaultCallOptions is resolved per call": (
            "test_abort.py::test_a_function_makes_the_event_of_each_call"
        ),
        "eagerlyConnect should actually eagerly connect": (
            f"{_KINDS}test_an_eager_client_connects_before_it_is_used"
        ),
        "client reconnects even after session grace": (
            f"{_RECONNECTING}TestGrace::test_a_call_after_it_has_a_new_session",
            f"{_LOST}test_a_later_call_begins_a_new_session",
        ),
        "client doesn't reconnect after session grace if connectOnInvoke is false": (
            f"{_RECONNECTING}TestGrace::test_without_reconnect_a_call_after_it_connects_nothing",
            f"{_KINDS}test_a_client_may_be_told_to_connect_no_sooner_than_asked",
        ),
        "calls service dispose methods on cleanup": (
            f"{_CONTEXT}test_states_are_disposed_of_when_the_server_closes"
        ),
        "works with non-object schemas": f"{_KINDS}test_any_schema_will_do",
        "procedure can use metadata": (f"{_CALLS}test_metadata_is_validated_and_seen_by_handlers"),
        "server can refresh handshake metadata over a live connection": (
            f"{_METADATA}test_a_client_is_asked_again_and_handlers_see_it",
            f"{_METADATA}test_what_validates_is_told_what_was_there_before",
        ),
        "server proactively re-handshakes via expiry": (
            f"{_METADATA}test_metadata_are_renewed_before_they_expire",
            "session/test_metadata_refresh.py::test_the_client_is_asked_one_handshake_timeout_before_they_expire",
        ),
        "a rejected metadata refresh tears down the session": (
            f"{_METADATA}test_refused_metadata_end_the_session"
        ),
        "an in-flight handler observes refreshed metadata mid-stream": (
            f"{_METADATA}test_a_handler_that_runs_sees_it_too"
        ),
        "a refresh the client never answers tears the session down": (
            f"{_METADATA}test_no_answer_in_time_ends_the_session"
        ),
        "a malformed re-handshake frame tears the session down": (
            f"{_METADATA}test_anything_else_on_that_stream_ends_the_session"
        ),
        "validate receives the connecting client id": (
            f"{_METADATA}test_what_validates_is_told_what_was_there_before"
        ),
    },
    "handler": {
        "rpc basic": f"{_CALLS}test_an_rpc_returns_its_response",
        "fallible rpc": f"{_KINDS}test_an_rpc_may_fail_with_a_declared_error",
        "stream basic": _IGNORES,
        "stream empty": f"{_KINDS}test_a_stream_may_end_before_it_has_begun",
        "stream with initialization": f"{_KINDS}test_a_stream_has_an_init",
        "fallible stream": _FALLIBLE,
        "subscriptions": f"{_KINDS}test_a_subscription_tells_of_each_change",
        "uploads": f"{_KINDS}test_an_upload_is_answered_when_it_is_finished",
        "uploads empty": f"{_CALLS}test_an_upload_of_nothing",
        "uploads with initialization": f"{_KINDS}test_an_upload_has_an_init",
    },
    "cancellation": {
        "clean handler > rpc": f"{_ENDS}test_without_requests_a_call_is_over_with_its_handler",
        "clean handler > stream": f"{_ENDS}test_a_stream_is_over_when_both_sides_have_ended",
        "clean handler > upload": f"{_ENDS}test_an_upload_is_over_when_the_client_has_ended_too",
        "clean handler > subscribe": (
            f"{_ENDS}test_without_requests_a_call_is_over_with_its_handler"
        ),
        "client initiated > rpc": f"{_ENDS}test_a_client_cancels_an_rpc",
        "client initiated > stream": _CLIENT_CANCELS,
        "client initiated > upload": _CLIENT_CANCELS,
        "client initiated > subscribe": _CLIENT_CANCELS,
        "server explicit > rpc": f"{_ENDS}test_a_server_cancels_an_rpc",
        "server explicit > stream": _SERVER_CANCELS,
        "server explicit > upload": _SERVER_CANCELS,
        "server explicit > subscribe": _SERVER_CANCELS,
        "server explicit > cancel is idempotent": (
            f"{_INVALID}test_a_call_that_the_server_cancelled_is_told_of_once"
        ),
    },
    "cleanup": {
        "closing a transport from the client cleans up connection on the server": (
            f"{_ENDS}test_a_closed_client_leaves_no_connection_at_the_server"
        ),
        "closing a transport from the server cleans up connection on the client": (
            f"{_ENDS}test_a_closed_server_leaves_no_connection_at_the_client"
        ),
        "rpc": _FORGOTTEN,
        "stream": _FORGOTTEN,
        "cancellation after transport close": (
            f"{_ENDS}test_a_call_of_a_closed_client_may_be_ended"
        ),
        "subscription": (
            _FORGOTTEN,
            f"{_KINDS}test_a_cancelled_subscription_watches_no_more",
        ),
        "upload": _FORGOTTEN,
        "shouldn't send messages across stale sessions": (
            f"{_LOST}test_a_call_does_not_move_into_the_next_session"
        ),
        "handler aborts rpc": f"{_ENDS}test_a_server_cancels_an_rpc",
        "handler aborts subscription": _CANCELS,
        "handler aborts stream": _CANCELS,
        "handler aborts upload": _CANCELS,
    },
    "context": {
        "should pass extended context to procedure": (
            f"{_CONTEXT}test_handlers_find_the_context_of_their_server"
        ),
        "should pass extended context to initializeState": (
            f"{_CONTEXT}test_a_state_is_made_from_the_context"
        ),
        "should be able to access context in procedures": (
            f"{_CONTEXT}test_handlers_find_the_context_of_their_server"
        ),
    },
    "deferCleanup": {
        "cleanups run in LIFO order": f"{_DEFERRED}test_what_is_deferred_last_runs_first",
        "cleanups run even when handler throws": (
            f"{_DEFERRED}test_it_runs_when_the_handler_fails"
        ),
        "cleanups run when handler is cancelled": (
            f"{_DEFERRED}test_it_runs_when_the_client_cancels"
        ),
        "one cleanup throwing does not stop remaining cleanups": (
            f"{_DEFERRED}test_one_that_fails_does_not_stop_the_others"
        ),
        "async cleanups are awaited": (f"{_DEFERRED}test_each_is_done_before_the_next_begins"),
        "deferCleanup works for stream procedures": _EACH_KIND,
        "deferCleanup works for subscription procedures": _EACH_KIND,
        "deferCleanup works for upload procedures": _EACH_KIND,
        "middleware deferCleanup runs after handler": (
            f"{_DEFERRED}test_what_middleware_defers_runs_after_what_the_handler_does"
        ),
        "cleanup that registers more cleanups": (
            f"{_DEFERRED}test_one_may_defer_another_which_runs_next"
        ),
        "stream cleanup runs when streams close, not when handler returns": (
            f"{_DEFERRED}test_it_waits_for_the_end_of_the_call_not_of_the_handler"
        ),
        "deferCleanup after handler finished calls fn immediately": (
            f"{_DEFERRED}test_after_the_end_it_runs_at_once"
        ),
    },
    "middleware": {
        "apply read-only middleware to rpc": _MIDDLEWARE,
        "apply read-only middleware to stream": _MIDDLEWARE,
        "apply read-only middleware to subscriptions": _MIDDLEWARE,
        "apply read-only middleware to uploads": _MIDDLEWARE,
        "apply multiple middlewares in order": (
            f"{_CONTEXT}test_layers_are_called_in_order_around_the_handler"
        ),
        "AsyncLocalStorage context is propagated via AsyncLocalStorage.run": (
            f"{_CONTEXT}test_context_variables_reach_inner_layers_and_the_handler"
        ),
    },
    "disconnects": {
        "unexpected disconnects > rpc": f"{_LOST}test_an_rpc_ends_with_its_session",
        "unexpected disconnects > stream": f"{_LOST}test_a_call_ends_with_its_session",
        "unexpected disconnects > subscription": f"{_LOST}test_a_call_ends_with_its_session",
        "unexpected disconnects > upload": f"{_LOST}test_a_call_ends_with_its_session",
        "calling a procedure on a closed transport > rpc": _CLOSED,
        "calling a procedure on a closed transport > stream": _CLOSED,
        "calling a procedure on a closed transport > subscription": _CLOSED,
        "calling a procedure on a closed transport > upload": _CLOSED,
    },
    "invalid-request": {
        "missing StreamOpenBit": f"{_INVALID}test_a_stream_must_be_opened",
        "missing serviceName": _NAMES,
        "missing procedureName": _NAMES,
        "service does not exist": _NAMES,
        "procedure does not exist": _NAMES,
        "bad init message": f"{_INVALID}test_the_init_must_have_its_shape",
        "bad request message": (
            f"{_INVALID}test_requests_must_have_their_shape",
            "schema/test_schema.py::test_a_missing_field_is_told_as_river_does",
        ),
        "data message for non-stream procedure": (
            f"{_INVALID}test_calls_that_take_no_requests_get_none"
        ),
        "request after close": f"{_INVALID}test_nothing_comes_behind_the_end_of_requests",
        "e2e": f"{_INVALID}test_a_client_of_another_schema_is_told",
        "tombstones > responds to multiple invalid requests for the same stream only once": (
            f"{_INVALID}test_a_stream_is_refused_once"
        ),
        "tombstones > starts responding to same stream after tombstones are evicted": (
            f"{_INVALID}test_a_stream_is_refused_again_once_it_was_forgotten"
        ),
        "tombstones > separate sessions don't evict tombstones": (
            f"{_INVALID}test_sessions_remember_what_was_refused_by_themselves"
        ),
    },
}

_SECRET = "clients are not told the text of what a handler raises, unless that is wished"
_OWNER = "a context is closed by whoever made it; what belongs to a server is a service's state"
_FAILS = f"{_ENDS}test_a_handler_fails"

DIFFERENT: Different = {
    "e2e": {
        "calls asyncDispose on extendedContext if it is disposable": (
            _OWNER,
            f"{_CONTEXT}test_a_context_is_its_owners_to_close",
        ),
        "calls asyncDispose on individual context values if context itself is not disposable": (
            _OWNER,
            f"{_CONTEXT}test_a_context_is_its_owners_to_close",
        ),
        "context disposal errors propagate to the consumer": (
            "errors of disposing of states do, once everything is closed",
            f"{_CONTEXT}test_what_disposal_raises_is_raised_when_all_is_done",
        ),
    },
    "cancellation": {
        "handler uncaught exception error > rpc": (
            _SECRET,
            (f"{_ENDS}test_the_handler_of_an_rpc_fails", f"{_ENDS}test_a_client_may_be_told_why"),
        ),
        "handler uncaught exception error > stream": (_SECRET, _FAILS),
        "handler uncaught exception error > upload": (_SECRET, _FAILS),
        "handler uncaught exception error > subscribe": (_SECRET, _FAILS),
    },
}

_HELPER = "a helper for tests; any object will do as a context"

NOT_OURS: NotOurs = {
    "e2e": {
        "createPartialContext throws on unmocked property access": _HELPER,
        "createPartialContext works as extendedContext with server dispose": _HELPER,
    },
}
