"""End the js-ws streams of these tests soon."""

from __future__ import annotations

from ..helpers.js_ws import short_js_ws_close as short_js_ws_close
