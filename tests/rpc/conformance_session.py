"""Say which test here stands for which case of the TypeScript implementation's own suite.

The names on the left are those of the suite, with its describe blocks; on the right stand file and
test. ``DIFFERENT`` lists cases whose outcome here is another one on purpose, ``ELSEWHERE`` those
that concern other modules.
"""

from __future__ import annotations

Cases = dict[str, str | tuple[str, ...]]

_C = "test_connector.py::"
_R = "test_reconnecting.py::"
_S = "test_session.py::"
_B = "test_backoff.py::"
_T = "test_sessions.py::"
_L = "test_ledger.py::"

RATE_LIMIT: Cases = {
    "should return 0 backoff time for new user": f"{_B}test_the_first_attempt_waits_nothing",
    "should return 0 budget consumed for new user": f"{_B}test_the_first_attempt_waits_nothing",
    "should consume budget correctly": f"{_B}test_attempts_are_counted",
    "keeps growing until startRestoringBudget": (
        f"{_B}test_nothing_is_forgiven_before_a_success",
        f"{_B}test_a_success_forgives_one_attempt_per_interval_down_to_none",
    ),
    "stops restoring budget when we consume budget again": (
        f"{_B}test_a_further_attempt_stops_the_forgiving"
    ),
    "respects maximum backoff time": f"{_B}test_the_maximum_holds_less_the_jitter",
    "backoff increases": f"{_B}test_each_wait_is_twice_the_one_before",
}

_FIRST = f"{_C}TestConnecting::"
_TIME = f"{_C}TestTimers::"
_GRACE = f"{_C}TestGrace::"
_LOSS = f"{_C}TestLoss::"
_MOVES = f"{_C}test_every_move_is_as_drawn_or_illegal"
_SAME = f"{_S}TestConnections::test_counters_and_buffer_survive_connections"
_LATE = f"{_C}TestLateNews::test_nothing_else_is_heard_of_an_old_attempt"
_CLOSE = f"{_C}TestEnds::test_closing_ends_everything_for_good"

STATE_MACHINE: Cases = {
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
        f"{_TIME}test_dialling_takes_the_connection_timeout_at_most"
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
    "send buffer backpressure > isSendBufferFull and waitForSendBufferDrain reflect buffer size": (
        f"{_S}TestMessages::test_the_buffer_is_full_at_its_bound_until_acks_come"
    ),
}

TRANSPORT: Cases = {
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
    "messages should not be resent when the client loses all state and reconnects to the server": (
        f"{_R}TestLostState::test_a_client_that_lost_it_begins_anew",
        f"{_R}TestLostState::test_a_client_that_lost_it_gets_in_although_nobody_told_the_server",
    ),
    "messages should not be resent when client reconnects to a different instance of the server": (
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
}

DISCONNECTS: Cases = {
    f"procedures should handle unexpected disconnects > {kind}": (
        f"{_R}TestGrace::test_it_elapses_in_a_long_row_of_attempts"
    )
    for kind in ("rpc", "stream", "subscription", "upload")
}

NEGATIVE: Cases = {
    "fatal connection attempt error should prevent reconnection": (
        f"{_R}TestServerDownAtFirst::test_a_fatal_error_makes_one_attempt"
    ),
    "fatal connection error should prevent reconnection": (
        f"{_C}TestLoss::test_a_fatal_loss_ends_the_session_and_the_attempts"
    ),
    "calling connect consecutively should reuse the same connection": (
        f"{_C}TestConnecting::test_connecting_twice_uses_one_connection"
    ),
    "incorrect client handshake": (f"{_T}TestFirstFrame::test_what_is_no_message_gets_no_response"),
    "seq number in the future should close connection": (
        f"{_S}TestBrokenRules::test_a_gap_ends_the_connection_and_keeps_the_session"
    ),
    "mismatched protocol version": f"{_T}TestFirstFrame::test_another_version_is_refused",
}

OTHERS: Cases = {
    "e2e > message order is preserved in the face of disconnects": (
        "test_session_cuts.py::test_a_cut_at_any_frame_loses_and_repeats_nothing"
    ),
    "e2e > client reconnects even after session grace": (
        f"{_R}TestGrace::test_a_call_after_it_has_a_new_session"
    ),
    "e2e > client doesn't reconnect after session grace if connectOnInvoke is false": (
        f"{_R}TestGrace::test_without_reconnect_a_call_after_it_connects_nothing"
    ),
    "e2e > server proactively re-handshakes via expiry": (
        "test_refresh.py::test_the_client_is_asked_one_handshake_timeout_before_they_expire"
    ),
    "e2e > a refresh never answered tears the session down": (
        "test_refresh.py::test_an_answer_has_the_handshake_timeout"
    ),
    "cleanup > shouldn't send messages across stale sessions": (
        f"{_S}TestConnections::test_a_destroyed_session_sends_nothing"
    ),
    "allocation > oom during heartbeat kills the session, client starts new session": (
        f"{_R}TestEnds::"
        "test_a_heartbeat_that_cannot_be_encoded_ends_the_session_and_a_call_begins_anew"
    ),
    "allocation > handshake oom kills the session, client starts new session": (
        f"{_C}TestMetadata::test_after_that_the_next_call_works_in_a_new_session"
    ),
    "ws > messages go only to their addressee": (
        f"{_S}TestMessages::test_a_wrong_receiver_is_counted_and_ignored"
    ),
    "message > default message has no control flags set": (
        f"{_C}TestConnecting::test_the_question_names_session_version_and_counters"
    ),
    "message > handshakeRequestMessage": ("test_handshake.py::test_a_request_says_what_was_asked"),
    "message > handshakeResponseMessage": (
        "test_handshake.py::test_a_welcome_names_the_session",
        "test_handshake.py::test_a_refusal_has_code_and_reason",
    ),
}

DIFFERENT = {
    "rateLimit > resetBudget zeroes consumed budget and stops restore": (
        f"{_B}test_a_server_that_is_down_for_ever_is_tried_for_ever",
        "nothing gets stuck that a reset would have to free",
    ),
    "rateLimit > reports remaining budget correctly": (
        f"{_B}test_a_server_that_is_down_for_ever_is_tried_for_ever",
        "there is no budget that could be used up",
    ),
    "negative > retrying single connection attempt should hit retry limit": (
        f"{_C}TestLoss::test_five_attempts_in_vain_are_told_once",
        "it is told once, as there, and the attempts go on",
    ),
    "transport > handshake grace period of 0 should lead to closed connections": (
        f"{_R}TestEnds::test_a_server_that_never_answers_is_told_after_five_attempts",
        "the same, but the attempts go on",
    ),
    "e2e > client-side encode failure": (
        f"{_S}TestMessages::test_a_message_that_cannot_be_encoded_leaves_the_session_as_it_was",
        "the call fails alone; there the session is destroyed",
    ),
}

_OWNER = "the owner of threads and sockets"

ELSEWHERE = {
    "state machine > close cleanup > pending identification": _OWNER,
    "state machine > pending identification event listeners: connectionErrored": _OWNER,
    "state machine > pending identification event listeners: connectionClosed": _OWNER,
    "state machine > pending identification event listeners: handshakeTimeout": _OWNER,
    "state machine > drain waiters survive state transitions and resolve when acks trim": _OWNER,
    "state machine > drain waiters resolve when the session closes": _OWNER,
    "transport > eager fetches handshake metadata concurrently with the connection": _OWNER,
    "negative > cannot get a bound send function on a closed transport": "the client's calls",
    "procedures should handle calling a procedure on a closed transport": "the client's calls",
}

CASES: Cases = {
    **{f"rateLimit > {name}": test for name, test in RATE_LIMIT.items()},
    **{f"state machine > {name}": test for name, test in STATE_MACHINE.items()},
    **{f"transport > {name}": test for name, test in TRANSPORT.items()},
    **{f"disconnects > {name}": test for name, test in DISCONNECTS.items()},
    **{f"negative > {name}": test for name, test in NEGATIVE.items()},
    **OTHERS,
    **{name: test for name, (test, _) in DIFFERENT.items()},
}
