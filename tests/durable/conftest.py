"""End the js-ws streams of these tests soon, and give each test every wire."""

from __future__ import annotations

import pytest

from ..helpers.js_ws import short_js_ws_close as short_js_ws_close
from ..helpers.wires import NAMES


@pytest.fixture(params=NAMES)
def protocol(request: pytest.FixtureRequest) -> str:
    """Each of the four wires."""
    return str(request.param)
