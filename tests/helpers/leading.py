"""Choose who does the rounds of connections: waiting threads, threads of their own, or shared ones.

``WSMUX_LEADS_BELOW`` says how many threads may wait already when one receives for the I/O thread: 0
for never, 1 by default, and any larger number. ``WSMUX_OWN_IO_THREADS`` says how many connections
have a thread of their own; with 0, all of them share one. Both hold in the process of the tests,
not in those they start.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wsmux.transport import message_transport, shared_io


def pytest_configure() -> None:
    own = os.environ.get("WSMUX_OWN_IO_THREADS")
    if own is not None:
        shared_io.OWN = int(own)
    leads_below = os.environ.get("WSMUX_LEADS_BELOW")
    if leads_below is not None:
        message_transport.LEADS_BELOW = int(leads_below)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of threads that receive, where none does."""
    if message_transport.LEADS_BELOW:
        return
    for item in items:
        if Path(item.path).name == "test_leading.py":
            item.add_marker(pytest.mark.skip(reason="no thread receives for the I/O thread"))
