"""Read the programs and commands of pages, and wait for what they start."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import wsmux

from .timeouts import WAIT

__all__ = ["ROOT", "answers", "asked", "blocks"]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def blocks(page: str, language: str) -> dict[str, str]:
    """Return the blocks of a language by their titles."""
    return {title: text for lang, title, text in BLOCK.findall(page) if lang == language}


def answers(port: int) -> bool:
    """Return whether something listens on a port of this machine."""
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def asked(url: str, **options: Any) -> bytes:
    """Return what a server writes to a stream that is opened."""
    with (
        wsmux.connect(url, timeout=WAIT, **options) as connection,
        connection.open_stream(WAIT) as stream,
    ):
        stream.timeout = WAIT
        return stream.readall()
