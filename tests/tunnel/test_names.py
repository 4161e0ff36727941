"""Pin the names of ``wsmux.tunnel``; adding or losing one is a decision, not an accident."""

from __future__ import annotations

import wsmux.tunnel


def test_the_package_offers_what_it_promises() -> None:
    assert set(wsmux.tunnel.__all__) == {
        "AllowList",
        "Forward",
        "Forwarder",
        "RemoteProcess",
        "Tcp",
        "TunnelError",
        "TunnelServer",
        "Unix",
        "parse_forward",
        "parse_place",
    }
    assert all(hasattr(wsmux.tunnel, name) for name in wsmux.tunnel.__all__)
