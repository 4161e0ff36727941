"""Come from pages whose origin looks like one that may connect, at every kind of server (H17).

Only the same origin, or one that is listed, gets a 101; all else is 403, and no thread is kept.
That of ``wsmux.serve`` is also tested, with more look-alikes, in ``faults/test_handshake_server``.
"""

from __future__ import annotations

import pytest

from wsmux.transports.origin import origin_allowed

from ..threads.carriers import SERVERS, WsgiServers
from .places import KINDS, Place, under_wsgi

LISTED = "https://app.example"

# What resembles a listed origin.
LIKE_LISTED = {
    "suffix": "https://app.example.evil.example",
    "suffix-without-dot": "https://app.exampleevil.example",
    "prefix": "https://evilapp.example",
    "subdomain": "https://evil.app.example",
    "parent": "https://example",
    "other-port": "https://app.example:8443",
    "port-of-http": "https://app.example:80",
    "scheme": "http://app.example",
    "websocket-scheme": "wss://app.example",
    "extension-scheme": "chrome-extension://app.example",
    "null": "null",
    "empty": "",
    "userinfo": "https://app.example@evil.example",
    "userinfo-before-ours": "https://evil@app.example",
    "trailing-dot": "https://app.example.",
    "two-trailing-dots": "https://app.example..",
    "path": "https://app.example/",
    "query": "https://app.example?x",
    "backslash": "https://app.example\\.evil.example",
    "tab-inside": "https://app\t.example",
    "two-origins": "https://app.example https://evil.example",
    "list": "https://app.example, https://evil.example",
    "ipv6": "https://[::1]",
    "ipv6-with-our-name": "https://[app.example]",
    "ipv6-zone": "https://[fe80::1%25app.example]",
    "ipv4-in-ipv6": "https://[::ffff:127.0.0.1]",
    "punycode": "https://xn--pp-eka.example",
    "punycode-of-nothing": "https://xn--app-.example",
    "homograph": "https://\xe0pp.example",
    "full-width": "https://\xef\xbd\x81pp.example",
    "percent": "https://%61pp.example",
    "underscore": "https://app_example",
    "wildcard": "*",
    "no-scheme": "app.example",
}

# What resembles the origin of the server itself, by its host and port.
LIKE_OWN = {
    "other-port": "http://127.0.0.1:1",
    "no-port": "http://127.0.0.1",
    "https": "https://{host}",
    "name-for-number": "http://localhost:{port}",
    "suffix": "http://127.0.0.1.evil.example:{port}",
    "trailing-dot": "http://127.0.0.1.:{port}",
    "userinfo": "http://{host}@evil.example",
    "userinfo-before-ours": "http://evil@{host}",
    "null": "null",
    "ipv6": "http://[::1]:{port}",
    "ipv4-in-ipv6": "http://[::ffff:127.0.0.1]:{port}",
    "hexadecimal": "http://0x7f.1:{port}",
    "decimal": "http://2130706433:{port}",
    "octal": "http://0177.0.0.1:{port}",
    "leading-zero-port": "http://127.0.0.1:0{port}",
    "foreign": "https://evil.example",
    "websocket-scheme": "ws://{host}",
}


@pytest.mark.parametrize("kind", KINDS)
def test_look_alikes_of_a_listed_origin_are_refused(kind: str) -> None:
    with KINDS[kind]([LISTED, "http://[2001:db8::7]:8080"]) as place:
        got = {name: place.status(origin) for name, origin in LIKE_LISTED.items()}
        assert got == dict.fromkeys(LIKE_LISTED, 403)
        assert place.status(f"http://{place.host}") == 403, "only those that are listed"
        assert place.status(LISTED) == 101
        assert place.status("HTTPS://App.Example:443") == 101
        assert place.status("http://[2001:db8::7]:8080") == 101
        assert place.status(None) == 101


@pytest.mark.parametrize("kind", KINDS)
def test_look_alikes_of_the_own_origin_are_refused(kind: str) -> None:
    with KINDS[kind](None) as place:
        check_own(place)


def check_own(place: Place) -> None:
    filled = {
        name: origin.format(host=place.host, port=place.port) for name, origin in LIKE_OWN.items()
    }
    got = {name: place.status(origin) for name, origin in filled.items()}
    assert got == dict.fromkeys(LIKE_OWN, 403)
    assert place.status(f"http://{place.host}") == 101
    assert place.status(None) == 101


@pytest.mark.long
@pytest.mark.parametrize("target", ["/", "/river"])
@pytest.mark.parametrize("server", SERVERS)
def test_look_alikes_are_refused_under_every_wsgi_server(
    server: str, target: str, wsgi_servers: WsgiServers
) -> None:
    """More of them than a server has threads: if it kept them it would answer no more."""
    check_own(under_wsgi(wsgi_servers.url(server), target))


@pytest.mark.parametrize("origin", ["null", "", "https://app.example/", "app.example", "x://y"])
def test_what_is_no_origin_cannot_be_listed(origin: str) -> None:
    assert not origin_allowed(origin, "host", secure=False, allowed=[origin, LISTED])
