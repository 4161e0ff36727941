"""Run a model of Hypothesis for long: 2,000 runs of 50 steps, where its short test is."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

__all__ = ["LongRun"]

RUNS, STEPS = 2000, 50


class LongRun:
    """The base of a long test, whose class names the model."""

    model: ClassVar[type[RuleBasedStateMachine]]

    @pytest.fixture
    def nothing_left_behind(self) -> None:
        """Let Hypothesis keep what it knows of the runs; the machines hold no descriptor."""

    @pytest.mark.long
    @pytest.mark.hang_bound(3600)
    def test_two_machines_agree_with_the_model(self) -> None:
        checked = [HealthCheck.too_slow, HealthCheck.data_too_large]  # of a machine that is busy
        run_state_machine_as_test(
            self.model,
            settings=settings(
                max_examples=RUNS, stateful_step_count=STEPS, suppress_health_check=checked
            ),
        )
