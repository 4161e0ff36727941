"""Topics of the bus: a slow reader goes on where it was, and hears of what it missed."""

from __future__ import annotations

import json
import secrets
import tempfile
from pathlib import Path

from wsmux import bus

KEEP = (5, 16 * 1024 * 1024, 3600.0)  # messages, bytes and seconds that a topic keeps

mine, other = (bus.Identity.from_secret(f"0x{secrets.token_hex(32)}", "ed25519") for _ in "12")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "twins.json")
    owners = {1: mine, 2: other}
    path.write_text(
        json.dumps(
            [{"id": n, "account": k.address, "relays": ["a.test"]} for n, k in owners.items()]
        )
    )
    twins = bus.FileTwins(path)
    with (
        bus.serve_relay(["a.test"], twins, topics={"prices": [1]}, topic_retention=KEEP) as relay,
        bus.Client(mine, relay.url, twins) as shop,
        bus.Client(other, relay.url, twins) as till,
    ):
        with till.subscribe("prices", credit=1) as prices:
            for price in (4, 5):
                shop.publish("prices", {"tea": price})
            message = prices.read(timeout=10)
            print(f"twin {message.source.twin} says", message.payload)
            kept = str(message.position)  # a program writes it down with its work

        for price in range(6, 14):
            shop.publish("prices", {"tea": price})

        with till.subscribe("prices", start=kept) as prices:
            try:
                prices.read(timeout=10)
            except bus.TopicGap as gap:
                print(f"{gap.count} are lost")
            print([prices.read(timeout=10).payload["tea"] for _ in range(5)])

        try:
            till.publish("prices", {"tea": 1})
        except bus.RelayRefused as error:
            print(error.message)

# Output:
# twin 1 says {'tea': 4}
# 4 are lost
# [9, 10, 11, 12, 13]
# twin 2 may not publish to 'prices': have the relay allow it with --topic
