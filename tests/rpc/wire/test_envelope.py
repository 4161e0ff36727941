"""What stands for a message that was too large to be read says so to both ends."""

from __future__ import annotations

from wsmux.rpc.errors import CANCEL
from wsmux.rpc.wire.envelope import Oversize, read_cancel


def test_a_cancelling_message_that_is_too_large_says_both_sizes() -> None:
    error = read_cancel(Oversize(300, 200))
    assert (error.code, error.message) == (
        CANCEL,
        "a message of 300 bytes is above the receiver's Options.max_size, 200: "
        "send it in parts, or raise max_size at both ends",
    )
