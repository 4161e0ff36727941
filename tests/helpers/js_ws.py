"""Shorten what takes five seconds in js-ws; tests that import the fixture have it."""

from __future__ import annotations

import pytest

from wsmux.protocols import native


@pytest.fixture(autouse=True)
def short_js_ws_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a js-ws stream whose tail is not acknowledged end soon; five seconds is the default."""
    monkeypatch.setattr(native, "JS_WS_CLOSE_DELAY", 0.02)
