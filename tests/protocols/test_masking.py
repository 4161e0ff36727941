"""Every masker XORs with the repeated key, and the C one is used only when it agrees."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.protocols import masking
from wsmux.protocols.masking import Buffer, mask, python_mask, rotate

from ..helpers.tables import each_case

Masker = Callable[[Buffer, bytes], bytes]

MASKERS = pytest.mark.parametrize(
    "masker", [pytest.param(mask, id="chosen"), pytest.param(python_mask, id="python")]
)
KEY = bytes.fromhex("37fa213d")
keys = st.binary(min_size=4, max_size=4)


def plainly(data: bytes, key: bytes) -> bytes:
    return bytes(byte ^ key[index % 4] for index, byte in enumerate(data))


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let the environment not decide which masker is chosen."""
    monkeypatch.delenv("WSMUX_PURE_PYTHON_MASK", raising=False)
    return monkeypatch


def install(patch: pytest.MonkeyPatch, masker: object) -> None:
    module = ModuleType("websockets.speedups")
    module.apply_mask = masker  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "websockets", ModuleType("websockets"))
    patch.setitem(sys.modules, "websockets.speedups", module)


@MASKERS
def test_example_of_the_rfc_is_masked(masker: Masker) -> None:
    assert masker(b"Hello", KEY) == bytes.fromhex("7f9f4d5158")


@each_case
@MASKERS
@pytest.mark.parametrize("size", [*range(10), 511, 512, 513, 514, 515, 1024, 65537])
def test_every_size_is_masked(masker: Masker, size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    assert masker(data, KEY) == plainly(data, KEY)


@MASKERS
@pytest.mark.parametrize("size", [5, 600])
@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_any_buffer_is_masked_and_left_alone(masker: Masker, size: int, kind: type) -> None:
    data = bytearray(b"x" * size)
    assert masker(kind(data), KEY) == plainly(bytes(data), KEY)
    assert data == b"x" * size


@given(st.binary(max_size=700), keys)
def test_both_maskers_agree(data: bytes, key: bytes) -> None:
    assert mask(data, key) == python_mask(data, key) == plainly(data, key)


@given(st.binary(max_size=700), keys)
def test_masking_twice_changes_nothing(data: bytes, key: bytes) -> None:
    assert python_mask(python_mask(data, key), key) == data


@given(st.binary(max_size=50), st.binary(max_size=50), keys)
def test_rotated_key_goes_on_where_the_first_part_ended(
    first: bytes, second: bytes, key: bytes
) -> None:
    parts = mask(first, key) + mask(second, rotate(key, len(first)))
    assert parts == mask(first + second, key)


@pytest.mark.parametrize(
    ("offset", "key"), [(0, b"abcd"), (1, b"bcda"), (3, b"dabc"), (4, b"abcd"), (9, b"bcda")]
)
def test_key_is_rotated_by_the_offset(offset: int, key: bytes) -> None:
    assert rotate(b"abcd", offset) == key


def test_masker_that_agrees_is_chosen(allowed: pytest.MonkeyPatch) -> None:
    def good(data: bytes, key: bytes) -> bytes:
        return plainly(bytes(data), key)

    install(allowed, good)
    assert masking._choose() == (good, True)


@pytest.mark.parametrize("bad", [lambda data, key: bytes(data), lambda data, key: b""])
def test_masker_that_disagrees_is_not_chosen(allowed: pytest.MonkeyPatch, bad: object) -> None:
    install(allowed, bad)
    assert masking._choose() == (python_mask, False)


def test_masker_wrong_at_one_size_only_is_not_chosen(allowed: pytest.MonkeyPatch) -> None:
    install(allowed, lambda data, key: b"" if len(data) == 1027 else plainly(bytes(data), key))
    assert masking._choose() == (python_mask, False)


def test_missing_masker_leaves_ours(allowed: pytest.MonkeyPatch) -> None:
    allowed.setitem(sys.modules, "websockets.speedups", None)
    assert masking._choose() == (python_mask, False)


@pytest.mark.parametrize("name", ["websockets", "websockets.speedups"])
def test_a_package_that_is_not_installed_leaves_ours(
    allowed: pytest.MonkeyPatch, name: str
) -> None:
    empty = ModuleType("websockets")
    empty.__spec__ = ModuleSpec("websockets", None, is_package=True)
    allowed.delitem(sys.modules, "websockets.speedups", raising=False)
    allowed.setitem(sys.modules, "websockets", None if name == "websockets" else empty)
    assert masking._choose() == (python_mask, False)


def test_the_masker_is_loaded_without_its_package(allowed: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "websockets"]:
        allowed.delitem(sys.modules, name)
    masker, native = masking._choose()
    assert native
    assert masker(b"Hello", KEY) == bytes.fromhex("7f9f4d5158")
    assert "websockets" not in sys.modules


def test_environment_can_force_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSMUX_PURE_PYTHON_MASK", "1")
    install(monkeypatch, lambda data, key: plainly(bytes(data), key))
    assert masking._choose() == (python_mask, False)
