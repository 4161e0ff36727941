"""The models of every wire and of River's session hold for long: 2,000 runs of 50 steps each."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from ..helpers.models.bymux import BymuxModel
from ..helpers.models.native import NativeModel, ShippedModel
from ..helpers.models.yamux import YamuxModel
from ..rpc.session.test_session_model import SessionModel

RUNS, STEPS = 2000, 50

MODELS = [NativeModel, ShippedModel, YamuxModel, BymuxModel, SessionModel]


@pytest.fixture
def nothing_left_behind() -> None:
    """Let Hypothesis keep what it knows of the runs; the machines hold no thread or descriptor."""


@pytest.mark.long
@pytest.mark.hang_bound(3600)
@pytest.mark.parametrize("model", MODELS)
def test_two_machines_agree_with_the_model(model: type[RuleBasedStateMachine]) -> None:
    checked = [HealthCheck.too_slow, HealthCheck.data_too_large]  # of a machine that is busy
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=RUNS, stateful_step_count=STEPS, suppress_health_check=checked
        ),
    )
