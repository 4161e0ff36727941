"""A subscription that ends while it is read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from wsmux.cluster import Retention
from wsmux.cluster.positions import NEW
from wsmux.cluster.subscription import Subscription
from wsmux.cluster.topics import MemoryTopics

from ..helpers.timeouts import WAIT


@pytest.mark.parametrize(("ends", "told"), [("subscription", "is closed"), ("store", "was left")])
def test_an_end_just_before_a_reader_waits_is_noticed(
    monkeypatch: pytest.MonkeyPatch, ends: str, told: str
) -> None:
    store = MemoryTopics(Retention())
    subscription = Subscription(store, "t", NEW)
    changes = store.changes

    def late(topic: str) -> int:
        (store if ends == "store" else subscription).close()
        return changes(topic)

    monkeypatch.setattr(store, "changes", late)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(subscription.read)
        try:
            with pytest.raises(ValueError, match=told):
                reading.result(WAIT)
        finally:
            store.wake("t")  # so that the thread ends
