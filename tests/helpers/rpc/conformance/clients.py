"""Cases about clients and servers on their connections."""

from __future__ import annotations

from .shapes import Different, NotOurs, Ours

__all__ = ["DIFFERENT", "NOT_OURS", "OURS"]

_C = "session/test_connector.py::"
_CALLS = "test_calls.py::"
_FRAMES = "test_client_frames.py::"
_H = "wire/test_handshake.py::"
_N = "test_connections.py::"
_R = "session/test_reconnecting.py::"
_S = "session/test_session.py::"
_T = "session/test_session_registry.py::"

OURS: Ours = {
    "transport": {
        "connection is recreated after clean client disconnect": (
            f"{_R}TestTransparent::test_a_connection_is_made_again_for_the_same_session"
        ),
        "misbehaving clients get their sessions recreated after reconnect": (
            f"{_R}TestLostState::test_a_client_that_skipped_messages_is_refused_and_begins_anew"
        ),
        "idle transport cleans up nicely": (
            f"{_R}TestEnds::test_a_closed_client_leaves_no_connection_behind"
        ),
        "idle transport stays alive": f"{_R}TestTransparent::test_an_idle_connection_stays",
        "heartbeats should not interrupt normal operation": (
            f"{_R}TestTransparent::test_heartbeats_do_not_disturb_messages"
        ),
        "sending right after session event should not cause invalid handshake": (
            f"{_R}TestTransparent::test_a_message_sent_with_the_first_session_waits_for_the_handshake"
        ),
        "seq numbers should be persisted across transparent reconnects": (
            f"{_R}TestTransparent::test_a_hundred_messages_arrive_once_and_in_order"
        ),
        "buffering messages during reconnect doesnt cause a crash": (
            f"{_R}TestTransparent::test_messages_of_both_sides_wait_for_a_connection"
        ),
        "both client and server transport get session created/closing/closed notifs": (
            f"{_R}TestTransparent::test_nobody_is_told_of_a_session_that_goes_on",
            f"{_R}TestGrace::test_it_elapses_in_a_long_row_of_attempts",
        ),
        "transport connection is not recreated after destroy": (
            f"{_C}TestEnds::test_a_closed_client_neither_connects_nor_has_sessions",
            f"{_R}TestEnds::test_a_closed_client_leaves_no_connection_behind",
        ),
        "multiple connections works": (
            f"{_T}TestUnknownClient::test_clients_have_sessions_of_their_own"
        ),
        "listening on session disconnect and manually reconnecting works": (
            f"{_R}TestEnds::test_connecting_when_a_session_closes_makes_a_new_one"
        ),
        "reconnecting with grace period of 0 should result in hard reconnect": (
            f"{_R}TestEnds::test_without_transparent_reconnects_both_sides_begin_anew"
        ),
        "reconnecting before grace period ends should leave session intact": (
            f"{_R}TestGrace::test_reconnecting_within_it_leaves_the_session_intact"
        ),
        "client transport calling .hardDisconnect() "
        "immediately kills the session and updates bookkeeping": (
            f"{_R}TestEnds::test_a_hard_disconnect_kills_the_session_here_and_there_after_the_grace"
        ),
        "session grace elapses during long reconnect loop": (
            f"{_R}TestGrace::test_it_elapses_in_a_long_row_of_attempts"
        ),
        "messages should not be resent "
        "when the client loses all state and reconnects to the server": (
            f"{_R}TestLostState::test_a_client_that_lost_it_begins_anew",
            f"{_R}TestLostState::test_a_client_that_lost_it_gets_in_although_nobody_told_the_server",
        ),
        "messages should not be resent "
        "when client reconnects to a different instance of the server": (
            f"{_R}TestLostState::test_nothing_is_sent_again_to_a_server_that_lost_it",
            f"{_R}TestLostState::test_after_that_reconnects_are_transparent_again",
        ),
        "recovers from phantom disconnects": (
            f"{_R}TestTransparent::test_a_phantom_disconnect_is_noticed_and_healed"
        ),
        "handshakes and stores parsed metadata in session": (
            f"{_R}TestMetadata::test_the_server_sees_what_the_client_made"
        ),
        "constructs handshake metadata after connecting by default": (
            f"{_C}TestConnecting::test_a_connection_asks_for_metadata"
        ),
        "client checks request schema on construction": (
            f"{_R}TestMetadata::test_a_rejected_client_is_told_and_stays_away"
        ),
        "construct throwing during handshake results in protocol error": (
            f"{_C}TestMetadata::test_metadata_that_cannot_be_made_end_the_session"
        ),
        "server checks request schema on receive": (
            f"{_R}TestMetadata::test_a_rejected_client_is_told_and_stays_away"
        ),
        "server gets previous parsed metadata on reconnect": (
            f"{_R}TestMetadata::test_each_connection_is_validated"
        ),
        "parse can reject connection": (
            f"{_R}TestMetadata::test_a_rejected_client_is_told_and_stays_away"
        ),
    },
    "ws": {
        "basic send/receive": f"{_CALLS}test_an_rpc_returns_its_response",
        "sending respects to/from fields": (
            f"{_N}test_clients_hear_what_is_for_them",
            f"{_S}TestMessages::test_a_wrong_receiver_is_counted_and_ignored",
        ),
        "hanging ws connection with no handshake is cleaned up after grace": (
            f"{_N}test_who_does_not_greet_is_hung_up_on"
        ),
        "ws connection is recreated after unclean disconnect": (
            f"{_CALLS}test_a_session_outlives_its_connection"
        ),
        "ws connection always calls the close callback": (
            f"{_N}test_a_client_hears_of_its_connections_in_order"
        ),
    },
    "negative": {
        "cannot get a bound send function on a closed transport": (
            f"{_C}TestEnds::test_a_closed_client_neither_connects_nor_has_sessions"
        ),
        "fatal connection attempt error should prevent reconnection": (
            f"{_R}TestServerDownAtFirst::test_a_fatal_error_makes_one_attempt",
            f"{_CALLS}test_what_is_in_vain_is_tried_once",
        ),
        "fatal connection error should prevent reconnection": (
            f"{_C}TestLoss::test_a_fatal_loss_ends_the_session_and_the_attempts"
        ),
        "calling connect consecutively should reuse the same connection": (
            f"{_C}TestConnecting::test_connecting_twice_uses_one_connection"
        ),
        "incorrect client handshake": (
            f"{_T}TestFirstFrame::test_what_is_no_message_gets_no_response"
        ),
        "seq number in the future should close connection": (
            f"{_S}TestBrokenRules::test_a_gap_ends_the_connection_and_keeps_the_session"
        ),
        "mismatched protocol version": f"{_T}TestFirstFrame::test_another_version_is_refused",
    },
    "message": {
        "ack": f"{_S}TestHeartbeats::test_a_heartbeat_is_an_ack_on_its_own_stream",
        "streamOpen": f"{_FRAMES}test_a_stream_is_messages_in_turn",
        "streamClose": f"{_FRAMES}test_a_stream_is_messages_in_turn",
        "handshakeRequestMessage": f"{_H}test_a_request_says_what_was_asked",
        "handshakeResponseMessage": (
            f"{_H}test_a_welcome_names_the_session",
            f"{_H}test_a_refusal_has_code_and_reason",
        ),
        "default message has no control flags set": (
            f"{_C}TestConnecting::test_the_question_names_session_version_and_counters"
        ),
        "combining control flags works": (
            f"{_FRAMES}test_an_rpc_is_one_message_and_its_first_result_counts"
        ),
    },
    "tracing": {
        "implicit telemetry gets picked up from handlers": (
            "test_spans.py::test_what_a_handler_does_belongs_to_its_call"
        ),
        "river errors are recorded on handler spans": (
            "test_spans.py::test_what_a_handler_raises_is_noted_by_class_and_code"
        ),
    },
}

_CALLBACKS = "there is one callback of each kind, given when a client or server is made"
_GOES_ON = "it is told once, as there, and the attempts go on"

DIFFERENT: Different = {
    "transport": {
        "handshake grace period of 0 should lead to closed connections": (
            "the same, but the attempts go on",
            f"{_R}TestEnds::test_a_server_that_never_answers_is_told_after_five_attempts",
        ),
        "eager fetches handshake metadata concurrently with the connection": (
            "metadata are always made for the connection that carries them",
            f"{_C}TestConnecting::test_a_connection_asks_for_metadata",
        ),
    },
    "negative": {
        "retrying single connection attempt should hit retry limit reached": (
            _GOES_ON,
            f"{_C}TestLoss::test_five_attempts_in_vain_are_told_once",
        ),
    },
    "events": {
        "notifies all handlers in order they were registered": (
            f"{_CALLBACKS}; it hears of everything in order",
            f"{_N}test_a_client_hears_of_its_connections_in_order",
        ),
        "removes all listeners": (
            f"{_CALLBACKS}; closing is the last that it hears of",
            f"{_N}test_closing_tells_once",
        ),
    },
}

_TRACING = "calls have spans; sessions and connections have none"
_UTILITY = "a utility of upstream's own tests"

NOT_OURS: NotOurs = {
    "events": {
        "does not notify removed handlers": _CALLBACKS,
        "does not notify handlers added while notifying another handler": _CALLBACKS,
        "does notify handlers removed while notifying another handler": _CALLBACKS,
    },
    "tracing": {
        "createSessionTelemetryInfo": _TRACING,
        "Traces sessions and connections across network boundary": _TRACING,
    },
    "duplexPair": {"should create a pair of duplex streams": _UTILITY},
    "observable": {
        "should set initial value correctly": _UTILITY,
        "should update value correctly": _UTILITY,
        "should notify listeners when value changes": _UTILITY,
        "should unsubscribe from notifications": _UTILITY,
    },
}
