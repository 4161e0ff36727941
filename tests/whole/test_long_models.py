"""The model of River's session holds for long, as those of the wires do beside their short runs."""

from __future__ import annotations

from ..helpers.long_models import LongRun
from ..rpc.session.test_session_model import SessionModel


class TestSessionModelForLong(LongRun):
    model = SessionModel
