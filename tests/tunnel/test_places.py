"""Places and forwards are read as ``ssh`` reads them, and as they are written."""

from __future__ import annotations

import pytest
from hypothesis import given

from wsmux.tunnel.places import Forward, Place, Tcp, Unix, parse_forward, parse_place

from ..helpers.tables import each_case
from ..helpers.tunnel_inputs import pieces, places


@given(places)
def test_what_is_written_is_read_the_same(place: Place) -> None:
    assert parse_place(str(place)) == place


@given(places, places)
def test_any_two_places_make_a_forward(listen: Place, to: Place) -> None:
    assert parse_forward(f"{listen}:{to}") == Forward(listen, to)


@given(pieces)
def test_any_text_is_a_place_or_refused(text: str) -> None:
    for parse in (parse_place, parse_forward):
        try:
            parse(text)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("text", "listen", "to"),
    [
        ("8080:h:80", Tcp("127.0.0.1", 8080), Tcp("h", 80)),
        ("0:h:80", Tcp("127.0.0.1", 0), Tcp("h", 80)),
        ("0.0.0.0:8080:h:80", Tcp("0.0.0.0", 8080), Tcp("h", 80)),
        ("[::]:0:[::1]:80", Tcp("::", 0), Tcp("::1", 80)),
        ("/run/a:h:80", Unix("/run/a"), Tcp("h", 80)),
        ("unix:/run/a:h:80", Unix("/run/a"), Tcp("h", 80)),
        ("8080:unix:/run/b", Tcp("127.0.0.1", 8080), Unix("/run/b")),
        ("/run/a:unix:/run/b", Unix("/run/a"), Unix("/run/b")),
    ],
)
def test_forwards_have_the_forms_of_ssh(text: str, listen: Place, to: Place) -> None:
    assert parse_forward(text) == Forward(listen, to)


def test_names_are_compared_in_one_form() -> None:
    assert parse_place("Example.ORG.:80") == Tcp("example.org", 80)
    assert parse_place("[2001:DB8:0::1]:80") == Tcp("2001:db8::1", 80)


@each_case
@pytest.mark.parametrize(
    "text",
    ["", "h", ":80", "h:", "h:x", "h:0", "h:65536", "h:080", "h:+80", "h:-1", "h :80", "h\n:80"]
    + ["a..b:80", ".a:80", "[::1:80", "[h]:80", "::1:80", "[]:80", "[::1%eth0]:80", "ü:80", "h:８"]
    + ["a" * 254 + ":80", "user@h:80", "h/x:80", "unix:", "unix:a", "unix:/", "unix:/a/../b"]
    + ["unix:/a/./b", "unix:/a//b", "unix://a", "unix:/a b", "unix:/a\0", "unix:/" + "a" * 107],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        parse_place(text)


@each_case
@pytest.mark.parametrize(
    "text",
    ["", "80", "h:80", "80:h", "80:h:x", "x:h:80", "80:h:0", "a:b:c:d:80", ":h:80", "80::80"]
    + ["80:unix:", ":unix:/a", "80:unix:a", "relative:h:80", "/:h:80"],
)
def test_what_is_no_forward_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        parse_forward(text)


def test_a_forward_says_what_it_does() -> None:
    assert str(parse_forward("80:[::1]:443")) == "127.0.0.1:80 to [::1]:443"
