"""The message bus: two services on two relays call each other, encrypted from end to end."""

from __future__ import annotations

import json
import secrets
import socket
import tempfile
from pathlib import Path

from wsmux import bus

PRICES = {"tea": 4, "cake": 6}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def record(number: int, keys: bus.Identity, relay: str) -> dict[str, object]:
    key = f"0x{keys.e2e_public.hex()}"
    return {"id": number, "account": keys.address, "relays": [relay], "pk": key}


def price(item: str) -> int:
    return PRICES[item]


def pay(order: dict[str, int], request: bus.ServiceRequest) -> str:
    print(f"{request.source} orders, encrypted: {request.encrypted}")
    total = sum(count * bank.call("1:shop", "price", item) for item, count in order.items())
    return f"{total} paid"


mine, other = (bus.Identity.from_secret(f"0x{secrets.token_hex(32)}", "ed25519") for _ in "12")
ports = {"a.test": free_port(), "b.test": free_port()}
routes = {domain: f"http://127.0.0.1:{port}/" for domain, port in ports.items()}

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "twins.json")
    path.write_text(json.dumps([record(1, mine, "a.test"), record(2, other, "b.test")]))
    twins = bus.FileTwins(path)
    with (
        bus.serve_relay(["a.test"], twins, port=ports["a.test"], routes=routes) as a,
        bus.serve_relay(["b.test"], twins, port=ports["b.test"], routes=routes) as b,
        bus.Client(mine, a.url, twins, session="shop") as shop,
        bus.Client(other, b.url, twins, session="bank") as bank,
    ):
        shop.serve({"price": price})
        bank.serve({"pay": pay})
        print(shop.call("2:bank", "pay", {"tea": 3, "cake": 1}))

# Output:
# 1:shop orders, encrypted: True
# 18 paid
