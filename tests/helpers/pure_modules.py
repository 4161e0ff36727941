"""Name the modules without threads, sockets and clocks, and their tests.

Run, it prints the modules for a report of coverage; with the argument ``tests``, those.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["PURE"]

ROOT = Path(__file__).parents[2] / "wsmux"

# Whole folders with a star.
PATTERNS = (
    "exceptions.py",
    "config.py",
    "runtime/arguments.py",
    "runtime/hints.py",
    "runtime/ip_addresses.py",
    "protocols/*",
    "mux/receive_buffer.py",
    "rpc/errors.py",
    "rpc/options.py",
    "rpc/wire/codec.py",
    "rpc/wire/codec_mismatch.py",
    "rpc/wire/envelope.py",
    "rpc/wire/handshake.py",
    "rpc/wire/json_codec.py",
    "rpc/wire/msgpack_codec.py",
    "rpc/wire/protobuf_codec.py",
    "rpc/wire/values.py",
    "rpc/session/connector.py",
    "rpc/session/metadata_refresh.py",
    "rpc/session/reconnect_limiter.py",
    "rpc/session/session.py",
    "rpc/session/session_registry.py",
    "rpc/schema/*",
    "rpc/codegen/refs.py",
    "bus/errors.py",
    "bus/wire/address.py",
    "bus/wire/envelope.py",
    "bus/wire/keys.py",
    "bus/wire/messages.py",
    "bus/wire/names.py",
    "bus/wire/replay_cache.py",
    "bus/wire/ss58.py",
    "bus/wire/tokens.py",
    "bus/wire/topics.py",
    "bus/wire/verification.py",
    "bus/session/answer_cache.py",
    "bus/session/subscription_state.py",
    "bus/relay/name_dispatch.py",
    "bus/relay/rate_limiter.py",
    "bus/relay/router.py",
    "bus/relay/topic_log.py",
    "bus/federation/ranker.py",
    "bus/federation/room.py",
    "bus/federation/schedule.py",
    "bus/gateway/backlog.py",
    "bus/gateway/json_messages.py",
    "bus/gateway/queue_names.py",
    "bus/gateway/upload_progress.py",
    "cluster/errors.py",
    "cluster/positions.py",
    "cluster/records.py",
    "tunnel/allow.py",
    "tunnel/errors.py",
    "tunnel/places.py",
    "tunnel/request_head.py",
    "tunnel/socks.py",
)

# Paths within the package, such as "protocols/native.py".
PURE = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in PATTERNS
    for path in ROOT.glob(pattern if pattern.endswith(".py") else f"{pattern}.py")
)

# These alone cover the whole of it, line by line and branch by branch.
TESTS = (
    "tests/test_config.py",
    "tests/test_exceptions.py",
    "tests/runtime",
    "tests/protocols",
    "tests/mux/test_receive_buffer.py",
    "tests/rpc/test_options.py",
    "tests/rpc/wire",
    "tests/rpc/session",
    "tests/rpc/schema",
    "tests/rpc/codegen",
    "tests/bus/test_errors.py",
    "tests/bus/test_missing.py",
    "tests/bus/wire",
    "tests/bus/session/test_answer_cache.py",
    "tests/bus/session/test_subscription_state.py",
    "tests/bus/relay/test_name_dispatch.py",
    "tests/bus/relay/test_rate_limiter.py",
    "tests/bus/relay/test_router.py",
    "tests/bus/relay/test_topic_log.py",
    "tests/bus/federation/test_ranker.py",
    "tests/bus/federation/test_room.py",
    "tests/bus/federation/test_schedule.py",
    "tests/bus/gateway/test_json_messages.py",
    "tests/bus/gateway/test_queue_names.py",
    "tests/bus/gateway/test_upload_progress.py",
    "tests/cluster/test_positions.py",
    "tests/cluster/test_records.py",
    "tests/tunnel/test_allow.py",
    "tests/tunnel/test_places.py",
    "tests/tunnel/test_request_head.py",
    "tests/tunnel/test_socks.py",
)


if __name__ == "__main__":
    if sys.argv[1:] == ["tests"]:
        print("\n".join(TESTS))  # noqa: T201
        sys.exit()
    # A deadline reads the clock, but what it does with the time is covered as the pure code is.
    print(",".join(f"wsmux/{path}" for path in [*PURE, "runtime/deadline.py"]))  # noqa: T201 - for the shell
