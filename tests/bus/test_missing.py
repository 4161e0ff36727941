"""A package that is missing is named with the extra that brings it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import wsmux.bus
from wsmux.bus.errors import BusError, TokenRefused
from wsmux.bus.twins.records import Twin
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.e2e import Box
from wsmux.bus.wire.envelope import digest, request
from wsmux.bus.wire.keys import Identity, verify
from wsmux.bus.wire.tokens import check_token, make_token
from wsmux.bus.wire.verification import Verifier

from ..helpers.bus.captured import NOW, TWINS, identity

NEEDS = [
    ("wire.messages", "google.protobuf"),
    ("wire.ss58", "base58"),
    ("wire.e2e", "cryptography.exceptions"),
    ("wire.keys", "mnemonic"),
    ("twins.http", "requests"),
]
SR25519 = r"pip install 'wsmux-streams\[bus-sr25519\]'"


@pytest.fixture
def no_sr25519(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sr25519", None)


@pytest.mark.parametrize(("module", "package"), NEEDS)
def test_a_missing_package_is_named_with_its_remedy(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module(f"wsmux.bus.{module}")
    monkeypatch.delitem(sys.modules, f"wsmux.bus.{module}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"needs .*: pip install 'wsmux-streams\[bus\]'"):
        importlib.import_module(f"wsmux.bus.{module}")


@pytest.mark.usefixtures("no_sr25519")
def test_keys_of_sr25519_need_their_extra() -> None:
    with pytest.raises(ImportError, match=SR25519):
        Identity.from_secret("//Alice", "sr25519")


def test_a_signature_of_sr25519_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = identity("alice").sign(b"text")
    monkeypatch.setitem(sys.modules, "sr25519", None)
    with pytest.raises(ImportError, match=SR25519):
        verify(TWINS[1].account, b"text", signature)


@pytest.mark.usefixtures("no_sr25519")
def test_ed25519_works_without_the_extra() -> None:
    made = Identity.from_secret("//Alice", "ed25519")
    assert verify(made.account, b"text", made.sign(b"text"))


def test_a_token_that_cannot_be_checked_is_the_relay_s_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = make_token(identity("alice"), 1, None, NOW)
    monkeypatch.setitem(sys.modules, "sr25519", None)
    with pytest.raises(TokenRefused, match="py-sr25519-bindings") as refused:
        check_token(token, NOW, TWINS.get)
    assert refused.value.status == 500


def test_an_envelope_that_cannot_be_checked_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = request("u", Address(1), Address(3), "calc.add", NOW, 60)
    sent.signature = identity("alice").sign(digest(sent))
    monkeypatch.setitem(sys.modules, "sr25519", None)
    receiver = Verifier(Address(3), Box(b"\1" * 32).open)
    with pytest.raises(BusError, match="py-sr25519-bindings") as failed:
        receiver.accept(sent, NOW, TWINS.get)
    assert failed.value.code == 500


def test_importing_the_bus_imports_none_of_its_packages() -> None:
    packages = ["google.protobuf", "base58", "cryptography", "mnemonic", "requests", "redis"]
    code = "import sys, wsmux.bus; found = set(sys.argv[1:]) & set(sys.modules); assert not found"
    subprocess.run([sys.executable, "-c", code, *packages], check=True, timeout=60)


def test_a_name_of_the_bus_is_imported_when_it_is_used() -> None:
    assert wsmux.bus.Twin is Twin


def test_the_bus_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Bus'"):
        _ = wsmux.bus.Bus
