"""Name the modules without threads, sockets and clocks; run, it prints them for coverage."""

from __future__ import annotations

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


if __name__ == "__main__":
    # A deadline reads the clock, but what it does with the time is covered as the pure code is.
    print(",".join(f"wsmux/{path}" for path in [*PURE, "runtime/deadline.py"]))  # noqa: T201 - for the shell
