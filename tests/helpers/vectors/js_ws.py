"""Frames captured from the published ``@matrixai/ws``: what each end sent in each scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wsmux.protocols.base import Role

Scenario = dict[str, Any]

PATH = Path(__file__).parent / "js_ws_vectors.json"

SCENARIOS: list[Scenario] = json.loads(PATH.read_text())["scenarios"]

NOT_FOR_A_MACHINE = {
    "keepalive_both": "pings and pongs are the channel's",
    "raw_text_frame": "the channel refuses text before a machine sees it",
    "raw_idle_timeout_never_armed": "no frame at all; timeouts are the channel's",
    "data_and_close_in_one_segment": "starts in the middle of a stream; has a test of its own",
}

PUBLISHED_ENDS = [
    pytest.param(scenario, role, id=f"{scenario['name']}-{role}")
    for scenario in SCENARIOS
    if scenario["name"] not in NOT_FOR_A_MACHINE
    for role in Role
    if f"published {role}" in scenario["peers"]
]


def is_from(role: Role, frame: dict[str, str]) -> bool:
    return frame["dir"] == ("c2s" if role is Role.CLIENT else "s2c")


def binary_frames(scenario: Scenario) -> list[dict[str, str]]:
    return [frame for frame in scenario["frames"] if frame.get("op") == "binary"]
