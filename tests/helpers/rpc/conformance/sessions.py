"""Cases about sessions: their states, their times, their buffers, and attempts to connect."""

from __future__ import annotations

from .shapes import Different, NotOurs, Ours

__all__ = ["DIFFERENT", "NOT_OURS", "OURS"]

_B = "session/test_reconnect_limiter.py::"
_C = "session/test_connector.py::"
_L = "session/test_send_buffer.py::"
_N = "test_connections.py::"
_O = "test_room.py::"
_R = "session/test_reconnecting.py::"
_S = "session/test_session.py::"
_T = "session/test_session_registry.py::"

_FIRST = f"{_C}TestConnecting::"
_TIME = f"{_C}TestTimers::"
_GRACE = f"{_C}TestGrace::"
_LOSS = f"{_C}TestLoss::"
_MOVES = f"{_C}test_every_move_is_as_drawn_or_illegal"
_SAME = f"{_S}TestConnections::test_counters_and_buffer_survive_connections"
_LATE = f"{_C}TestLateNews::test_nothing_else_is_heard_of_an_old_attempt"
_CLOSE = f"{_C}TestEnds::test_closing_ends_everything_for_good"

OURS: Ours = {
    "stateMachine": {
        "initial state > no connection": f"{_FIRST}test_nothing_happens_before_it_is_wanted",
        "initial state > connecting": f"{_FIRST}test_the_first_attempt_dials_at_once",
        "initial state > handshaking": f"{_FIRST}test_a_connection_asks_for_metadata",
        "initial state > connected": f"{_FIRST}test_the_answer_connects",
        "initial state > pending identification": (
            f"{_T}TestFirstFrame::test_a_greeting_tells_who_and_what"
        ),
        "state transitions > no connection -> backing off": _MOVES,
        "state transitions > backing off -> connecting": (
            f"{_TIME}test_the_wait_ends_with_the_next_attempt"
        ),
        "state transitions > connecting -> handshaking": (
            f"{_FIRST}test_a_connection_asks_for_metadata"
        ),
        "state transitions > handshaking -> connected": (
            f"{_TIME}test_a_connected_client_watches_for_silence_only"
        ),
        "state transitions > waiting (no existing session) -> connected": (
            f"{_T}TestUnknownClient::test_it_begins_a_session_with_its_own_id"
        ),
        "state transitions > waiting (existing session) -> connected": (
            f"{_T}TestSameSession::test_it_is_resumed",
            f"{_S}TestConnections::test_a_connection_begins_with_the_whole_buffer_in_the_same_bytes",
        ),
        "state transitions > backing off -> no connection": (
            f"{_C}TestEnds::test_a_hard_disconnect_stops_the_attempts"
        ),
        "state transitions > connecting (conn failed) -> no connection": (
            f"{_LOSS}test_a_fatal_dialling_error_ends_the_session_and_the_attempts"
        ),
        "state transitions > connecting (conn ok) -> no connection": (
            f"{_C}TestLateNews::test_a_connection_that_comes_too_late_is_hung_up"
        ),
        "state transitions > handshaking -> no connection": (
            f"{_LOSS}test_a_loss_in_the_handshake_keeps_the_session"
        ),
        "state transitions > connected -> no connection": (
            f"{_LOSS}test_a_drop_after_a_healthy_connection_dials_at_once",
            f"{_S}TestConnections::test_a_lost_connection_sends_nothing_more",
        ),
        **{
            f"state transitions preserve buffer, seq, ack > {move}": _SAME
            for move in (
                "no connection -> backing off",
                "backing off -> connecting",
                "connecting -> handshaking",
                "handshaking -> connected",
                "backing off -> no connection",
                "connecting -> no connection",
                "handshaking -> no connection",
                "connected -> no connection",
            )
        },
        **{
            f"state transitions deal with session grace period appropriately > {moves}": (
                f"{_GRACE}test_it_runs_from_the_loss_of_a_connection"
            )
            for moves in (
                "no connection -> backing off: partially consumed grace period",
                "no connection -> backing off -> connecting: partially consumed grace period",
                "no connection -> backing off -> connecting -> handshaking: "
                "partially consumed grace period",
                "no connection -> backing off -> connecting -> handshaking -> connected: "
                "partially consumed grace period",
                "backing off -> no connection: partially consumed grace period",
                "connecting -> no connection: partially consumed grace period",
                "handshaking -> no connection: partially consumed grace period",
            )
        },
        "state transitions deal with session grace period appropriately > "
        "handshaking -> connected: connected should clear grace timer": (
            f"{_S}TestGrace::test_a_connection_ends_it"
        ),
        **{
            f"stale handles post-transition > {move}: stale handle": _LATE
            for move in (
                "no connection -> backing off",
                "backing off -> connecting",
                "connecting -> handshaking",
                "handshaking -> connected",
                "backing off -> no connection",
                "connecting -> no connection",
                "handshaking -> no connection",
                "connected -> no connection",
            )
        },
        "stale handles post-transition > waiting -> connected: stale handle": (
            f"{_T}TestSameSession::test_the_end_of_the_replaced_connection_changes_nothing"
        ),
        **{
            f"close cleanup > {state}": (
                _CLOSE,
                f"{_S}TestConnections::test_a_destroyed_session_is_empty",
            )
            for state in ("no connection", "backing off", "connecting", "handshaking", "connected")
        },
        "close cleanup > connecting finish after close": (
            f"{_C}TestLateNews::test_a_connection_that_comes_after_closing_is_hung_up"
        ),
        "event listeners > no connection event listeners: onSessionGracePeriodElapsed": (
            f"{_R}TestGrace::test_without_reconnect_a_call_after_it_connects_nothing"
        ),
        "event listeners > backing off event listeners: onBackoffFinished": (
            f"{_TIME}test_the_wait_ends_with_the_next_attempt"
        ),
        "event listeners > backing off event listeners: onSessionGracePeriodElapsed": (
            f"{_GRACE}test_it_ends_the_session_and_the_attempts_go_on"
        ),
        "event listeners > connecting event listeners: connectionEstablished": (
            f"{_FIRST}test_a_connection_asks_for_metadata"
        ),
        "event listeners > connecting event listeners: connectionFailed": (
            f"{_TIME}test_the_wait_ends_with_the_next_attempt"
        ),
        "event listeners > connecting event listeners: connectionTimeout": (
            f"{_TIME}test_an_owner_that_does_not_dial_in_time_has_a_moment_to_say_so"
        ),
        "event listeners > connecting event listeners: sessionGracePeriodElapsed": (
            f"{_TIME}test_the_nearer_of_two_timers_counts",
            f"{_GRACE}test_a_handshake_that_waits_for_metadata_goes_on_with_a_new_session",
        ),
        "event listeners > handshaking event listeners: connectionErrored": (
            f"{_LOSS}test_a_loss_in_the_handshake_keeps_the_session"
        ),
        "event listeners > handshaking event listeners: connectionClosed": (
            f"{_LOSS}test_a_loss_in_the_handshake_keeps_the_session"
        ),
        "event listeners > handshaking event listeners: onHandshakeData": (
            f"{_FIRST}test_the_answer_connects"
        ),
        "event listeners > handshaking event listeners: handshakeTimeout": (
            f"{_TIME}test_a_handshake_takes_the_handshake_timeout_at_most"
        ),
        "event listeners > handshaking event listeners: sessionGracePeriodElapsed": (
            f"{_GRACE}test_a_handshake_for_the_session_that_is_over_is_hung_up"
        ),
        "event listeners > pending identification event listeners: onHandshakeData": (
            f"{_T}TestFirstFrame::test_a_greeting_tells_who_and_what"
        ),
        "event listeners > handshaking sendHandshake: "
        "codec failure does not corrupt seq and subsequent success works": (
            f"{_C}TestMetadata::test_after_that_the_next_call_works_in_a_new_session",
            f"{_L}test_a_failed_encode_changes_nothing",
        ),
        "event listeners > pending identification sendHandshake: "
        "codec failure does not prevent subsequent success": (
            f"{_T}TestUnknownClient::test_a_welcome_that_cannot_be_encoded_begins_nothing"
        ),
        "event listeners > connected event listeners: connectionErrored": (
            f"{_LOSS}test_a_drop_after_a_healthy_connection_dials_at_once"
        ),
        "event listeners > connected event listeners: connectionClosed": (
            f"{_LOSS}test_a_drop_after_a_healthy_connection_dials_at_once"
        ),
        "event listeners > connected event listeners: onMessageData": (
            f"{_C}TestMessages::test_a_message_is_handed_on"
        ),
        "heartbeats > active heartbeating works and is cleared on state transition": (
            f"{_S}TestHeartbeats::test_a_server_sends_an_ack_every_interval",
            f"{_S}TestHeartbeats::test_a_server_without_a_connection_sends_none",
        ),
        "heartbeats > passive heartbeating echoes back acks": (
            f"{_S}TestHeartbeats::test_a_client_returns_one_for_each"
        ),
        "heartbeats > closes the connection once nothing arrives before the deadline": (
            f"{_S}TestHeartbeats::test_both_ends_give_a_silent_connection_up"
        ),
        "heartbeats > inbound messages keep the connection past the deadline": (
            f"{_S}TestHeartbeats::test_a_message_keeps_the_connection"
        ),
        "heartbeats > does not dispatch acks": (
            f"{_S}TestHeartbeats::test_an_ack_with_other_flags_is_counted_and_not_handed_on"
        ),
        "heartbeats > rejects a message whose from does not match the session peer": (
            f"{_S}TestBrokenRules::test_a_wrong_sender_ends_the_session"
        ),
        "send buffer backpressure > "
        "isSendBufferFull and waitForSendBufferDrain reflect buffer size": (
            f"{_S}TestMessages::test_the_buffer_is_full_at_its_bound_until_acks_come"
        ),
        "close cleanup > pending identification": (
            "test_serving.py::test_a_shutdown_ends_connections_that_have_not_greeted"
        ),
        **{
            f"event listeners > pending identification event listeners: {event}": (
                f"{_N}test_who_leaves_without_a_greeting_leaves_nothing"
            )
            for event in ("connectionErrored", "connectionClosed")
        },
        "event listeners > pending identification event listeners: handshakeTimeout": (
            f"{_N}test_who_does_not_greet_is_hung_up_on"
        ),
        "send buffer backpressure > "
        "drain waiters survive state transitions and resolve when acks trim the buffer": (
            f"{_O}test_what_waited_for_a_connection_arrives_in_order"
        ),
        "send buffer backpressure > drain waiters resolve when the session closes": (
            f"{_O}test_a_writer_that_waits_hears_of_the_end_of_the_client"
        ),
    },
    "rateLimit": {
        "should return 0 backoff time for new user": f"{_B}test_the_first_attempt_waits_nothing",
        "should return 0 budget consumed for new user": f"{_B}test_the_first_attempt_waits_nothing",
        "should consume budget correctly": f"{_B}test_attempts_are_counted",
        "keeps growing until startRestoringBudget": (
            f"{_B}test_nothing_is_forgiven_before_a_success",
            f"{_B}test_a_success_forgives_attempts_down_to_none",
        ),
        "stops restoring budget when we consume budget again": (
            f"{_B}test_a_further_attempt_stops_the_forgiving"
        ),
        "respects maximum backoff time": f"{_B}test_the_maximum_holds_less_the_jitter",
        "backoff increases": f"{_B}test_each_wait_is_twice_the_one_before",
    },
}

_FOR_EVER = f"{_B}test_a_server_that_is_down_for_ever_is_tried_for_ever"

DIFFERENT: Different = {
    "rateLimit": {
        "resetBudget zeroes consumed budget and stops restore": (
            "nothing gets stuck that a reset would have to free",
            _FOR_EVER,
        ),
        "reports remaining budget correctly": (
            "there is no budget that could be used up",
            _FOR_EVER,
        ),
    },
}

NOT_OURS: NotOurs = {}
