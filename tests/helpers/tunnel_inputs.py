"""What tunnels are given: the bytes of SOCKS5, and places as Hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from wsmux.tunnel.places import Place, Tcp, Unix

GREETING = bytes([5, 1, 0])


def reply(number: int) -> bytes:
    return bytes([5, number, 0, 1]) + bytes(6)


labels = st.text("abcxyz019-_", min_size=1, max_size=6)

hosts = st.one_of(
    st.lists(labels, min_size=1, max_size=3).map(".".join).filter(lambda host: host != "unix"),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)

tcp = st.builds(Tcp, hosts, st.integers(1, 65_535))

unix = st.lists(labels, min_size=1, max_size=4).map(lambda parts: Unix("/" + "/".join(parts)))

# What places and patterns are made of, in any order.
pieces = st.text("[]:./%*-,!ab0189ux é\n\0", max_size=30)

places: st.SearchStrategy[Place] = tcp | unix
