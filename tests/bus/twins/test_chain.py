"""A node of the chain tells of twins and takes updates; whatever else it does is a failure.

Its client is played by hand, as substrate-interface 1.8 behaves.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from wsmux.bus.errors import BusError, TwinsUnavailable
from wsmux.bus.twins.chain import ChainTwins, split_domains
from wsmux.bus.twins.records import MAX_RELAYS
from wsmux.bus.twins.sources import CachedTwins, twins_from
from wsmux.bus.wire.keys import verify
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.captured import PEOPLE, TWINS, identity
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for

URL = "wss://chain.test"


class Chain:
    """Hold what is on the chain, and count connections to its node."""

    def __init__(self) -> None:
        self.records: dict[int, dict[str, Any]] = {
            1: {
                "id": 1,
                "account_id": PEOPLE["alice"]["accountId"],
                "relay": "R1.test_r2.test_r1.test",
                "entities": [],
                "pk": PEOPLE["alice"]["pk"],
            }
        }
        self.numbers: dict[str, int] = {f"0x{TWINS[1].account.hex()}": 1}
        self.options: list[dict[str, Any]] = []
        self.closed = 0
        self.failure: Exception | None = None
        self.refusal: dict[str, str] | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.queries = 0

    def module(self) -> ModuleType:
        module: Any = ModuleType("substrateinterface")
        module.SubstrateInterface = lambda **options: Node(self, options)
        module.Keypair = SimpleNamespace
        module.KeypairType = SimpleNamespace(ED25519=0, SR25519=1)
        return module


class Node:
    def __init__(self, chain: Chain, options: dict[str, Any]) -> None:
        self._chain = chain
        chain.options.append(options)

    def query(self, module: str, name: str, params: list[Any]) -> Any:
        assert module == "TfgridModule"
        self._chain.queries += 1
        assert self._chain.gate.wait(WAIT)
        if self._chain.failure is not None:
            raise self._chain.failure
        table: dict[Any, Any] = {
            "Twins": self._chain.records,
            "TwinIdByAccountID": self._chain.numbers,
        }[name]
        return SimpleNamespace(value=table.get(params[0]))

    def compose_call(self, module: str, name: str, arguments: dict[str, Any]) -> Any:
        return (module, name, arguments)

    def get_account_nonce(self, address: str) -> int | None:
        return {PEOPLE["alice"]["accountId"]: 7}.get(address)

    def generate_signature_payload(self, call: Any, nonce: int) -> Any:
        return SimpleNamespace(data=bytearray(repr((call, nonce)).encode()))

    def create_signed_extrinsic(self, call: Any, keypair: Any, nonce: int, signature: bytes) -> Any:
        return (call, keypair, nonce, signature)

    def submit_extrinsic(self, extrinsic: Any, wait_for_inclusion: bool) -> Any:
        assert wait_for_inclusion
        self._chain.calls.append(extrinsic)
        refusal = self._chain.refusal
        return SimpleNamespace(is_success=refusal is None, error_message=refusal)

    def close(self) -> None:
        self._chain.closed += 1


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> Chain:
    chain = Chain()
    monkeypatch.setitem(sys.modules, "substrateinterface", chain.module())
    return chain


@pytest.fixture
def twins(chain: Chain) -> ChainTwins:
    return ChainTwins(URL)


def soon() -> Deadline:
    return Deadline(WAIT)


def test_a_chain_tells_of_a_twin(twins: ChainTwins) -> None:
    assert twins.get(1, soon()) == TWINS[1]._replace(relays=("r1.test", "r2.test"))


def test_a_chain_tells_of_no_others(twins: ChainTwins) -> None:
    assert twins.get(2, soon()) is None


def test_a_chain_finds_accounts(twins: ChainTwins) -> None:
    found = twins.find(TWINS[1].account, soon())
    assert found is not None
    assert found.id == 1


@pytest.mark.parametrize("number", [None, 0, 2])
def test_an_account_without_a_twin_is_not_found(
    chain: Chain, twins: ChainTwins, number: int | None
) -> None:
    if number is not None:
        chain.numbers["0x" + "00" * 32] = number
    assert twins.find(bytes(32), soon()) is None


def test_a_twin_may_have_neither_relay_nor_key(chain: Chain, twins: ChainTwins) -> None:
    chain.records[1].update(relay=None, pk=None)
    found = twins.get(1, soon())
    assert found is not None
    assert (found.relays, found.pk) == ((), None)


def test_a_text_that_the_client_shows_as_hexadecimal_is_read(
    chain: Chain, twins: ChainTwins
) -> None:
    chain.records[1]["relay"] = "0x" + b"r1.test_\xff_r2.test".hex()
    found = twins.get(1, soon())
    assert found is not None
    assert found.relays == ("r1.test", "r2.test")


def test_a_key_that_the_client_shows_as_text_is_read(chain: Chain, twins: ChainTwins) -> None:
    chain.records[1]["pk"] = "\x02" + "a" * 32
    found = twins.get(1, soon())
    assert found is not None
    assert found.pk == b"\2" + b"a" * 32


def test_one_connection_is_kept(chain: Chain, twins: ChainTwins) -> None:
    twins.get(1, soon())
    twins.get(2, soon())
    assert chain.options == [{"url": URL, "ws_options": {"timeout": 12.0}, "auto_reconnect": False}]


@pytest.mark.parametrize("failure", [OSError("gone"), ValueError("bad"), RuntimeError("odd")])
def test_whatever_the_client_raises_is_a_failure(
    chain: Chain, twins: ChainTwins, failure: Exception
) -> None:
    chain.failure = failure
    with pytest.raises(TwinsUnavailable, match=f"{URL} cannot be queried: ") as failed:
        twins.get(1, soon())
    assert failed.value.__cause__ is failure


def test_the_next_question_connects_anew_after_a_failure(chain: Chain, twins: ChainTwins) -> None:
    chain.failure = OSError("gone")
    with pytest.raises(TwinsUnavailable):
        twins.get(1, soon())
    chain.failure = None
    assert twins.get(1, soon()) is not None
    assert (len(chain.options), chain.closed) == (2, 1)


def test_a_bad_record_is_a_failure(chain: Chain, twins: ChainTwins) -> None:
    chain.records[1]["account_id"] = "x"
    with pytest.raises(TwinsUnavailable, match="is not an SS58 address"):
        twins.get(1, soon())


@pytest.mark.parametrize(("name", "crypto_type", "nonce"), [("alice", 1, 7), ("carol", 0, 0)])
def test_an_update_is_signed_by_the_identity(
    chain: Chain, twins: ChainTwins, name: str, crypto_type: int, nonce: int
) -> None:
    own = identity(name)
    assert twins.update(own, ["r2.test", "r1.test"], own.e2e_public, soon())
    call, keypair, used, signature = chain.calls[0]
    assert call == (
        "TfgridModule",
        "update_twin",
        {"relay": "r1.test_r2.test", "pk": f"0x{own.e2e_public.hex()}"},
    )
    assert (keypair.public_key, keypair.crypto_type, used) == (own.account, crypto_type, nonce)
    signed = repr((call, nonce)).encode()
    assert verify(own.account, signed, own.key_type.prefix + signature)


def test_an_update_may_publish_no_key(chain: Chain, twins: ChainTwins) -> None:
    twins.update(identity("alice"), ["r1.test"], None, soon())
    assert chain.calls[0][0][2]["pk"] is None


def test_an_update_that_the_chain_refuses_is_not_tried_elsewhere(
    chain: Chain, twins: ChainTwins
) -> None:
    chain.refusal = {"name": "UnauthorizedToUpdateTwin"}
    with pytest.raises(BusError, match="refused to update the twin: .*Unauthorized") as refused:
        twins.update(identity("alice"), ["r1.test"], None, soon())
    assert not isinstance(refused.value, TwinsUnavailable)


def test_closing_closes_the_connection_once(chain: Chain, twins: ChainTwins) -> None:
    twins.get(1, soon())
    twins.close()
    twins.close()
    assert chain.closed == 1


def test_who_waits_for_another_question_does_so_until_its_deadline(
    chain: Chain, twins: ChainTwins
) -> None:
    chain.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(twins.get, 1, soon())
        wait_for(lambda: chain.queries == 1)
        with pytest.raises(TwinsUnavailable, match="was busy with other lookups"):
            twins.get(2, Deadline(0.01))
        chain.gate.set()
        assert answer.result(WAIT) is not None


@pytest.mark.usefixtures("chain")
def test_a_url_of_a_node_is_a_chain_through_a_cache() -> None:
    twins = twins_from([URL, "ws://other.test"])
    assert isinstance(twins, CachedTwins)
    assert twins.name == f"{URL}, ws://other.test"


def test_the_client_of_the_chain_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "substrateinterface", None)
    with pytest.raises(ImportError, match=r"pip install 'wsmux-streams\[bus-chain\]'"):
        twins_from([URL])


@pytest.mark.parametrize(
    ("text", "domains"),
    [
        ("_", ()),
        ("a_b_a", ("a", "b")),
        ("A.test", ("a.test",)),
        ("http://a_b", ("b",)),
        ("a b_c/d_e?f_g", ("g",)),
        ("\0", ()),
    ],
)
def test_what_names_no_host_is_left_out(text: str, domains: tuple[str, ...]) -> None:
    assert split_domains(text) == domains


def test_no_more_relays_are_read_than_a_twin_may_have() -> None:
    assert len(split_domains("_".join(f"r{n}" for n in range(100)))) == MAX_RELAYS
