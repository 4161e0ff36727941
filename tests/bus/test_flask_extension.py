"""A Flask application on the bus: what it calls and serves, from which moment, in which process."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from flask import Flask, current_app, g

from wsmux.bus.client import Client
from wsmux.bus.errors import BusError, NobodyJoined
from wsmux.bus.services import ServiceRequest
from wsmux.bus.wire.address import Address
from wsmux.flask import Bus

from ..helpers.bus.clients import ALICE, BOB, WAIT, staged
from ..helpers.bus.people import Table, table_of
from ..helpers.bus.relays import Table as RelayTable
from ..helpers.bus.relays import identity, served
from ..helpers.bus.scripted_relay import StageRelay
from ..helpers.commands import PATIENCE
from ..helpers.load.measuring import CHECKOUT
from ..helpers.marking import wide
from ..helpers.waiting import wait_for

relay = pytest.fixture(staged)


@pytest.fixture
def twins() -> Table:
    return table_of(ALICE, BOB)


@pytest.fixture
def app() -> Flask:
    made = Flask("shop")
    made.config["CURRENCY"] = "EUR"
    return made


@pytest.fixture
def bus(app: Flask, relay: StageRelay, twins: Table) -> Iterator[Bus]:
    with Bus(app, identity=BOB.identity, relays=relay.url, twins=twins, gateway=True) as made:
        yield made


@pytest.fixture
def alice(relay: StageRelay, twins: Table) -> Iterator[Client]:
    with Client(ALICE.identity, relay.url, twins, twin=1) as made:
        yield made


def starting() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "wsmux-bus-start"]


# Names


def test_processes_share_in_the_calls_of_a_name(app: Flask) -> None:
    twins = RelayTable()
    with (
        served() as server,
        Bus(app, identity=identity(2), relays=server.url, twins=twins, name="shop") as one,
        Bus(Flask("b"), identity=identity(2), relays=server.url, twins=twins, name="shop") as two,
        Client(identity(1), server.url, twins) as caller,
    ):
        for each in (one, two):
            each.service("who")(lambda _, me=each: str(me.client.address))
            each.start()
        wait_for(lambda: _workers(caller) == 2, WAIT)
        answers = [caller.call("shop", "who", timeout=WAIT) for _ in range(4)]
        assert {*answers} == {str(one.client.address), str(two.client.address)}
        assert one.call("shop", "who", timeout=WAIT) in answers


def _workers(caller: Client) -> int:
    try:
        return len(caller.who("shop", timeout=WAIT).workers)
    except NobodyJoined:
        return 0


# Commands


def test_a_command_runs_in_the_context_of_the_application(bus: Bus, alice: Client) -> None:
    @bus.service("price")
    def price(payload: int) -> str:
        g.payload = payload  # each call has a context of its own
        return f"{g.payload} {current_app.config['CURRENCY']}"

    assert price.__name__ == "price"
    bus.start()
    assert [alice.call(2, "price", n, timeout=WAIT) for n in (1, 2)] == ["1 EUR", "2 EUR"]


def test_the_end_of_a_context_follows_each_command(app: Flask, bus: Bus, alice: Client) -> None:
    ended: list[BaseException | None] = []
    app.teardown_appcontext(ended.append)

    @bus.service("fail")
    def fail(payload: object) -> None:
        assert not ended
        raise BusError(7, "no")

    bus.start()
    with pytest.raises(BusError, match="no") as caught:
        alice.call(2, "fail", timeout=WAIT)
    assert caught.value.code == 7
    (error,) = ended
    assert isinstance(error, BusError)


def test_a_command_may_ask_for_the_request(bus: Bus, alice: Client) -> None:
    @bus.service("who")
    def who(payload: object, request: ServiceRequest) -> str:
        return str(request.source)

    bus.start()
    assert alice.call(2, "who", timeout=WAIT) == str(alice.address)


def test_a_command_may_come_later(bus: Bus, alice: Client) -> None:
    bus.client.wait_connected(WAIT)
    bus.service("late")(lambda payload: "served")
    assert alice.call(2, "late", timeout=WAIT) == "served"
    with pytest.raises(ValueError, match="'late' is already served"):
        bus.service("late")(lambda payload: None)


def test_requests_that_waited_find_every_command(bus: Bus, alice: Client) -> None:
    waiting = [alice.submit(2, name, timeout=WAIT) for name in ("one", "two")]
    bus.service("one")(lambda payload: 1)
    bus.service("two")(lambda payload: 2)
    bus.start()
    assert [future.result() for future in waiting] == [1, 2]


def test_a_command_is_served_once(bus: Bus) -> None:
    bus.service("add")(sum)
    with pytest.raises(ValueError, match="'add' is already served"):
        bus.service("add")(max)


@pytest.mark.parametrize(
    ("command", "kind", "text"),
    [("", ValueError, "give each a name"), (sum, TypeError, r'as in @service\("billing.add"\)')],
)
def test_a_decorator_without_a_command_says_so(
    bus: Bus, alice: Client, command: object, kind: type[Exception], text: str
) -> None:
    for service in (bus.service, alice.service):
        with pytest.raises(kind, match=text):
            service(command)  # type: ignore[arg-type]


def test_scripts_have_the_same_decorator(relay: StageRelay, twins: Table, alice: Client) -> None:
    with Client(BOB.identity, relay.url, twins, twin=2, gateway=True) as client:

        @client.service("add")
        def add(numbers: list[int]) -> int:
            return sum(numbers)

        @client.service("ask", workers=1)
        def ask(payload: object, request: ServiceRequest) -> str:
            return request.command

        assert add([1]) == 1
        assert alice.call(2, "add", [1, 2], timeout=WAIT) == 3
        assert alice.call(2, "ask", timeout=WAIT) == "ask"


# Calls, and the client


def test_a_view_calls_another_twin(
    app: Flask, bus: Bus, relay: StageRelay, twins: Table, alice: Client
) -> None:
    alice.serve({"double": lambda n: 2 * n})
    session = alice.address

    @app.get("/double/<int:n>")
    def double(n: int) -> dict[str, int]:
        future = bus.submit(session, "double", n, timeout=WAIT)
        return {"one": bus.call(session, "double", n, timeout=WAIT), "two": future.result()}

    assert app.test_client().get("/double/4").json == {"one": 8, "two": 8}


def test_the_first_request_starts_the_bus(app: Flask, bus: Bus, relay: StageRelay) -> None:
    bus.service("add")(sum)
    assert relay.connected() == []
    assert app.test_client().get("/nothing").status_code == 404
    wait_for(lambda: relay.connected() == [Address(2)])


def test_a_directory_that_is_down_delays_the_start_and_no_request(
    app: Flask, relay: StageRelay, twins: Table, caplog: pytest.LogCaptureFixture
) -> None:
    app.add_url_rule("/", "well", lambda: "well")
    twins.down = True
    with Bus(app, identity=BOB.identity, relays=relay.url, twins=twins) as bus:
        assert app.test_client().get("/").text == "well"
        wait_for(lambda: "is not started yet: the table is down" in caplog.text)
        with pytest.raises(BusError, match="the table is down"):
            bus.call(1, "add")
        twins.down = False
        wait_for(lambda: len(relay.connected()) == 1)


def test_a_mistake_in_the_settings_is_logged_once_and_raised_by_calls(
    app: Flask, twins: Table, caplog: pytest.LogCaptureFixture
) -> None:
    app.add_url_rule("/", "well", lambda: "well")
    with Bus(app, identity=BOB.identity, relays="http://relay.test", twins=twins) as bus:
        assert app.test_client().get("/").text == "well"
        wait_for(lambda: "the bus of <Flask 'shop'> cannot be started" in caplog.text)
        wait_for(lambda: not starting())
        with pytest.raises(ValueError, match="http://relay.test"):
            bus.call(1, "add")


def test_threads_share_one_client(bus: Bus) -> None:
    together = threading.Barrier(8)
    found: set[int] = set()

    def ask() -> None:
        together.wait(WAIT)
        found.add(id(bus.client))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert found == {id(bus.client)}


def test_a_closed_bus_makes_no_client(app: Flask, bus: Bus, relay: StageRelay) -> None:
    bus.client.wait_connected(WAIT)
    bus.close()
    bus.close()
    assert bus.client.closed
    with Bus(Flask("other"), identity=BOB.identity, relays=relay.url, twins=table_of(BOB)) as never:
        never.close()
        never.start()
        assert not starting()
        with pytest.raises(ValueError, match="this Bus is closed"):
            never.call(1, "add")


def test_a_bus_is_closed_while_its_client_is_made(app: Flask, relay: StageRelay) -> None:
    table = _Slow({2: BOB.record()})
    bus = Bus(app, identity=BOB.identity, relays=relay.url, twins=table)
    bus.start()
    assert table.entered.wait(WAIT)
    bus.close()
    table.go_on.set()
    wait_for(lambda: not starting())
    assert relay.tokens == []


class _Slow(Table):
    """Find a twin only when the test lets it go on."""

    def __init__(self, twins: dict[int, object]) -> None:
        super().__init__(twins)  # type: ignore[arg-type]
        self.entered, self.go_on = threading.Event(), threading.Event()

    def find(self, *args: object) -> object:  # type: ignore[override]
        self.entered.set()
        assert self.go_on.wait(WAIT)
        return super().find(*args)  # type: ignore[arg-type]


# Settings


def test_settings_come_from_the_application(app: Flask, relay: StageRelay, twins: Table) -> None:
    app.config.update(
        WSMUX_BUS_IDENTITY=BOB.identity, WSMUX_BUS_RELAYS="ws://127.0.0.1:1", WSMUX_BUS_TWINS=twins
    )
    bus = Bus(relays=relay.url)  # an argument goes first
    with pytest.raises(ValueError, match="no application yet: call init_app first"):
        bus.call(1, "add")
    with pytest.raises(ValueError, match="no application yet: call init_app first"):
        bus.start()
    with bus:
        bus.init_app(app)
        bus.client.wait_connected(WAIT)
        with pytest.raises(ValueError, match="another application"):
            bus.init_app(Flask("other"))


@pytest.mark.parametrize("missing", ["identity", "relays", "twins"])
def test_a_missing_setting_is_named(app: Flask, twins: Table, missing: str) -> None:
    given = {"identity": BOB.identity, "relays": "ws://relay.test", "twins": twins}
    del given[missing]
    text = f"Bus needs {missing}=, or WSMUX_BUS_{missing.upper()} in app.config"
    with pytest.raises(ValueError, match=text):
        Bus(app, **given)  # type: ignore[arg-type]


def test_a_forked_child_has_a_client_of_its_own(bus: Bus, relay: StageRelay) -> None:
    bus.service("add")(sum)
    parent = bus.client
    parent.wait_connected(WAIT)
    gc.collect()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = 0 if bus.client is not parent and not bus.client.closed else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert bus.client is parent


# A real server

APP = """
import os
import signal

from flask import Flask

from tests.helpers.bus.clients import ALICE, BOB
from tests.helpers.bus.people import table_of
from wsmux.flask import Bus

app = Flask(__name__)
twins = table_of(ALICE, BOB)
bus = Bus(app, identity=BOB.identity, relays=os.environ["RELAY"], twins=twins)


@bus.service("pid")
def pid(payload):
    return os.getpid()


if os.environ["STARTS"] == "module":
    bus.start()
"""

HOOK = """
def post_worker_init(worker):
    if __import__("os").environ["STARTS"] == "hook":
        worker.wsgi.extensions["wsmux_bus"].start()
"""


@pytest.mark.parametrize("starts", ["hook", *wide("module")])
def test_each_worker_of_gunicorn_serves_without_a_request(
    starts: str, relay: StageRelay, twins: Table, alice: Client, tmp_path: object
) -> None:
    folder = str(tmp_path)
    with open(f"{folder}/bus_app.py", "w", encoding="utf-8") as file:
        file.write(APP)
    with open(f"{folder}/hooks.py", "w", encoding="utf-8") as file:
        file.write(HOOK)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fd = listener.fileno()
        preload = ["--preload"] if starts == "hook" else []
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--threads", "2", "--workers", "2", *preload]
            + ["--bind", f"fd://{fd}", "--config", f"{folder}/hooks.py", "--log-level", "warning"]
            + ["--no-control-socket", "--chdir", folder, "bus_app:app"],
            cwd=CHECKOUT,
            env={
                **os.environ,
                "PYTHONPATH": f"{CHECKOUT}:{folder}",
                "RELAY": relay.url,
                "STARTS": starts,
            },
            pass_fds=[fd],
        )
    try:
        wait_for(lambda: len(relay.connected()) == 2, PATIENCE)
        workers = {alice.call(each, "pid", timeout=WAIT) for each in relay.connected()[:2]}
        assert len(workers) == 2
        assert process.pid not in workers
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)
