"""Give the tests a real Redis."""

from __future__ import annotations

import pytest

from ..helpers.redis_server import redis_server

server = pytest.fixture(scope="module", name="server")(redis_server)
