"""The metrics of a relay have a bounded number of lines."""

from __future__ import annotations

import pytest

from wsmux.bus.relay import metrics as module
from wsmux.bus.relay.metrics import RelayMetrics


def lines(metrics: RelayMetrics) -> list[str]:
    return [each for each in metrics.text().decode().splitlines() if "{relay=" in each]


def test_domains_that_were_not_tried_for_long_leave_the_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_DOMAINS", 2)
    metrics = RelayMetrics()
    metrics.federated("a.test", True)
    metrics.federated("b.test", False)
    metrics.federated("a.test", False)
    metrics.federated("c.test", True)
    assert lines(metrics) == [
        'federation_message_success{relay="a.test"} 1.0',
        'federation_message_success{relay="c.test"} 1.0',
        'federation_message_error{relay="a.test"} 1.0',
    ]


def test_twins_that_name_ever_new_domains_do_not_make_the_metrics_long() -> None:
    metrics = RelayMetrics()
    for number in range(module.MAX_DOMAINS + 500):
        metrics.federated(f"{number}.test", number % 2 == 0)
    assert len(lines(metrics)) == module.MAX_DOMAINS
