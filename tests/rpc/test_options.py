"""Options are checked when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc import Options


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"heartbeat_interval": 0.0}, "heartbeat_interval must be above 0"),
        ({"handshake_timeout": -1.0}, "handshake_timeout must not be negative"),
        ({"unread_messages": 0}, "unread_messages must be a whole number from 1 up"),
        ({"ack_messages": 1.5}, "ack_messages must be a whole number from 1 up"),
        ({"max_size": 0}, "max_size must be a whole number from 1 up"),
        ({"max_size": 16 * 1024 - 1}, "max_size must be from 16 KiB to 1 GiB, but is 16383"),
        ({"max_size": 2**30 + 1}, "max_size must be from 16 KiB to 1 GiB"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Options(**wrong)


def test_the_defaults_are_valid() -> None:
    assert Options().heartbeat_interval == 1.0
