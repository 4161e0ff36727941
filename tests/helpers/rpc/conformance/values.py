"""Cases about what calls carry: values, the halves they go through, and their encodings."""

from __future__ import annotations

from .shapes import Different, NotOurs, Ours

__all__ = ["DIFFERENT", "NOT_OURS", "OURS"]

_PIPES = "engine/test_call_streams.py::"
_ROOM = "test_room.py::"
_UNSENDABLE = "test_unsendable.py::"
_PROTOBUF = "test_protobuf_services.py::"
_PROTOBUF_CODEC = "wire/test_protobuf_codec.py::"
_ARRIVES = "wire/test_codec.py::test_arrives_as"

CODECS = {"naive": "json", "binary": "msgpack"}

_ORDER = f"{_PIPES}test_what_was_pushed_is_read_in_order"
_UNREAD = f"{_PIPES}test_stopping_drops_what_is_unread"
_WAITS = f"{_PIPES}test_a_reader_waits_for_the_end"
_SHARED = f"{_PIPES}test_readers_at_once_share_what_comes"
_AGAIN = f"{_PIPES}test_a_loop_that_was_left_may_be_taken_up_again"
_ONCE = f"{_PIPES}test_closing_tells_the_peer_once"
_HAS_ROOM = f"{_ROOM}test_a_writer_has_room_again_after_acknowledgements"

OURS: Ours = {
    "streams": {
        "Readable unit > should close the readable": (f"{_PIPES}test_an_ended_half_ends_a_loop"),
        "Readable unit > should be able to use the raw iter from Symbol.asyncIterator": _AGAIN,
        "Readable unit > should iterate over the values pushed to the stream": _ORDER,
        "Readable unit > should iterate over the values push to the stream after close": _ORDER,
        "Readable unit > should handle eager iterations gracefully": _SHARED,
        "Readable unit > should not resolve iterator until value is pushed or stream is closed": (
            f"{_PIPES}test_a_reader_waits_for_a_value",
            _WAITS,
        ),
        "Readable unit > "
        "should return an array of the stream values when collect is called after close": _ORDER,
        "Readable unit > should not resolve collect until the stream is closed": _WAITS,
        "Readable unit > should support for-await-of": _ORDER,
        "Readable unit > should emit error results as part of iteration": (
            f"{_PIPES}test_errors_are_values_for_those_who_want_results",
            f"{_PIPES}test_errors_are_raised_and_reading_goes_on",
        ),
        "Readable unit > break > should signal the next stream iteration": (
            f"{_PIPES}test_the_next_read_tells_of_stopping"
        ),
        "Readable unit > break > should signal the pending stream iteration": (
            f"{_PIPES}test_a_waiting_read_tells_of_stopping"
        ),
        "Readable unit > break > "
        "should signal the next stream iteration wtih a queued up value": _UNREAD,
        "Readable unit > break > should signal the next stream iteration "
        "with a queued up value after stream is closed": _UNREAD,
        "Readable unit > break > should not signal the next stream iteration "
        "with an empty queue after stream is closed": (
            f"{_PIPES}test_stopping_behind_the_end_says_nothing"
        ),
        "Readable unit > break > should end iteration if draining mid-stream": (
            f"{_PIPES}test_stopping_within_a_loop_ends_it"
        ),
        "Writable unit > should write": f"{_PIPES}test_what_is_written_is_sent",
        "Writable unit > should close the writable": _ONCE,
        "Writable unit > should allow calling close multiple times": _ONCE,
        "Writable unit > should throw when writing after close": (
            f"{_PIPES}test_nothing_is_written_behind_the_end"
        ),
        "Writable unit > backpressure > write should return true without a backpressure source": (
            f"{_PIPES}test_what_is_written_is_sent"
        ),
        "Writable unit > backpressure > "
        "waitForWriteReady should resolve immediately when not backpressured": _HAS_ROOM,
        "Writable unit > backpressure > "
        "waitForWriteReady should stay pending until the buffer drains": _HAS_ROOM,
        "Writable unit > backpressure > "
        "waitForWriteReady should resolve immediately on a closed writable": (
            f"{_ROOM}test_ending_needs_no_room"
        ),
    },
    "protobuf codec": {
        "roundtrips transport envelopes with raw byte payloads": (
            f"{_PROTOBUF_CODEC}test_bytes_go_as_they_are"
        ),
        "roundtrips control payloads through msgpack": (
            f"{_PROTOBUF_CODEC}test_everything_else_goes_as_msgpack"
        ),
        "rejects envelopes without a payload field": (
            "wire/test_protobuf_malformed.py::test_is_refused"
        ),
    },
    "protobuf": {
        "unary call and returned unary error": (
            f"{_PROTOBUF}test_a_unary_method_returns_its_response",
            f"{_PROTOBUF}test_a_unary_error_has_what_came_with_it",
        ),
        "unary call can use ctx.cancel": f"{_PROTOBUF}test_a_handler_cancels_its_call",
        "server streaming returns decoded protobuf messages": (
            f"{_PROTOBUF}test_a_server_sends_several_responses"
        ),
        "client streaming finalizes to a unary protobuf response": (
            f"{_PROTOBUF}test_a_client_sends_several_requests"
        ),
        "bidi streaming surfaces returned Err values on the readable error channel": (
            f"{_PROTOBUF}test_both_send_several",
            f"{_PROTOBUF}test_a_response_may_be_an_error_and_reading_goes_on",
        ),
        "protobuf handshake metadata is decoded through the router helpers": (
            f"{_PROTOBUF}test_metadata_of_a_handshake_may_be_a_message"
        ),
        "protobuf middleware can inspect unary requests": (
            f"{_PROTOBUF}test_middleware_is_given_the_request"
        ),
    },
    "backpressure": {
        "messages written under backpressure while disconnected survive a reconnect": (
            f"{_ROOM}test_what_waited_for_a_connection_arrives_in_order"
        ),
        "pending waitForWriteReady resolves when the transport closes": (
            f"{_ROOM}test_a_writer_that_waits_hears_of_the_end_of_the_client"
        ),
    },
    "codec": {
        **{
            f"{codec} > {example} > encodes and decodes correctly": _ARRIVES
            for codec in CODECS
            for example in (
                "empty object",
                "simple object",
                "non-utf8 string",
                "null value",
                "empty buffer",
                "bigint value",
                "deeply nested",
                "buffer test",
            )
        },
        **{
            f"{codec} > invalid json throws": f"wire/test_{ours}_malformed.py::test_refused"
            for codec, ours in CODECS.items()
        },
    },
    "allocation": {
        "oom during heartbeat kills the session, client starts new session": (
            "session/test_reconnecting.py::TestEnds::"
            "test_a_heartbeat_that_cannot_be_encoded_ends_the_session_and_a_call_begins_anew"
        ),
        "oom during handshake kills the session, client starts new session": (
            "session/test_connector.py::TestMetadata::test_after_that_the_next_call_works_in_a_new_session"
        ),
    },
    "unserializable": {
        "binary codec > client-side encode failure cleans up listeners": (
            f"{_UNSENDABLE}test_an_init_that_cannot_be_sent_fails_its_call_alone",
            f"{_UNSENDABLE}test_a_name_that_cannot_be_sent_leaves_no_call_behind",
        ),
    },
}

_SHARES = "reading takes no lock: a loop may be taken up again, and several threads may read"
_ALONE = "a response that cannot be sent fails its own call; there the session is destroyed"
_WAITING = "writing waits for room, as long as its timeout, instead of telling that there is none"
_FAILS = f"{_UNSENDABLE}test_a_response_that_cannot_be_sent_fails_its_call_alone"

DIFFERENT: Different = {
    "streams": {
        "Readable unit > "
        "should synchronously lock the stream when Symbol.asyncIterable is called": (
            _SHARES,
            (_AGAIN, _SHARED),
        ),
        "Readable unit > should synchronously lock the stream when collect() is called": (
            _SHARES,
            (_AGAIN, _SHARED),
        ),
        "Readable unit > should synchronously lock the stream when break() is called": (
            _SHARES,
            f"{_PIPES}test_a_waiting_read_tells_of_stopping",
        ),
        "Readable unit > should support for-await-of with break": (
            "leaving a loop loses nothing; stop() is what drops the rest",
            (_AGAIN, f"{_PIPES}test_stopping_within_a_loop_ends_it"),
        ),
        "Readable unit > should throw when pushing to a closed stream": (
            "it is dropped; a server has refused what comes behind the end before",
            f"{_PIPES}test_what_comes_behind_the_end_is_dropped",
        ),
        "Readable unit > should throw when closing multiple times": (
            "it may be done twice, as with everything that closes",
            f"{_PIPES}test_ending_twice_is_fine",
        ),
        "Writable unit > backpressure > "
        "write should return false when the send buffer is full but still write": (
            _WAITING,
            _HAS_ROOM,
        ),
    },
    "backpressure": {
        "write reports backpressure above the high-water mark and recovers after acks": (
            _WAITING,
            _HAS_ROOM,
        ),
    },
    "codec": {
        f"{codec} > optional field > encodes and decodes correctly": (
            "there is no undefined; records leave out optional fields that are None",
            "test_records.py::test_none_is_written_for_a_required_field",
        )
        for codec in CODECS
    },
    "unserializable": {
        "binary codec > rpc handler returning symbol causes client disconnect": (_ALONE, _FAILS),
        "binary codec > subscription handler writing symbol causes client disconnect": (
            _ALONE,
            _FAILS,
        ),
        "json codec > rpc handler returning symbol silently drops the value": (
            "nothing is dropped silently: the call fails",
            _FAILS,
        ),
    },
}

_LAST = "close() takes no value; the last one is written before"

NOT_OURS: NotOurs = {
    "streams": {
        "Writable unit > should support closing with value": _LAST,
        "Writable unit > backpressure > "
        "close with a final value should write regardless of backpressure": _LAST,
    },
}
