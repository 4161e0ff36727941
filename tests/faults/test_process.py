"""Fork, interrupt, exit and collect, each in a process of its own.

What concerns connections runs in ``wsmux``, and in wide runs in ``yamux`` and ``bymux``; ``js-ws``
is the machine of ``wsmux``. What concerns servers and the application's code runs in ``wsmux``.
Interrupts at every point of a call take a second each: the other two wires have those where the
wire says something.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ..helpers import process_scripts
from ..helpers.marking import wide
from ..helpers.process_scripts import AT_EXIT

IN_WIRES = pytest.mark.parametrize("protocol", ["wsmux", *wide("yamux", "bymux")])


@IN_WIRES
@pytest.mark.parametrize(
    "unread",
    ["nothing", "unread"],
)
def test_every_call_in_a_forked_child_raises_and_nothing_is_written(
    unread: str, protocol: str
) -> None:
    process_scripts.run("fork", unread, protocol=protocol)


@pytest.mark.parametrize("how", ["os", "multiprocessing", "daemon"])
def test_forked_child_can_connect_anew(how: str) -> None:
    process_scripts.run("child_connects", how)


@IN_WIRES
def test_forks_under_load_leave_the_parent_unharmed(protocol: str) -> None:
    process_scripts.run("fork_under_load", protocol=protocol)


def test_server_stopped_in_a_forked_child_goes_on_in_the_parent() -> None:
    process_scripts.run("child_stops_server")


def test_child_that_leaves_the_block_of_a_server_does_not_stop_it() -> None:
    process_scripts.run("child_leaves_server_block")


@IN_WIRES
@pytest.mark.parametrize("state", process_scripts.EXITS)
def test_interpreter_exits_without_close(state: str, protocol: str) -> None:
    process_scripts.run("exit_with", state, protocol=protocol)


@pytest.mark.parametrize("kind", AT_EXIT)
def test_what_is_used_at_exit_works_or_fails_typed_and_prints_nothing(kind: str) -> None:
    process_scripts.run("at_exit", kind)


def test_an_isolated_subinterpreter_has_no_threads_and_says_so() -> None:
    process_scripts.run("isolated")


@pytest.mark.skipif(find_spec("_testcapi") is None, reason="this Python was built without it")
@pytest.mark.parametrize("end", ["open", "closed"])
def test_a_subinterpreter_ends_though_its_streams_are_open(end: str) -> None:
    process_scripts.run("subinterpreter", end)


@pytest.mark.skipif(find_spec("_testcapi") is None, reason="this Python was built without it")
def test_a_subinterpreter_ends_though_clients_and_servers_of_river_are_open() -> None:
    process_scripts.run("subinterpreter_with_river")


@IN_WIRES
@pytest.mark.parametrize("kind", ["stream", "rwb", "w", *wide("rb", "wb", "r", "rw")])
def test_collection_inside_the_mutex_resets_the_stream(kind: str, protocol: str) -> None:
    process_scripts.run("collect_under_mutex", kind, protocol=protocol)


@IN_WIRES
@pytest.mark.parametrize(
    "call",
    ["read", "readall", "write", "accept_stream", "iterate", "wait_drained", "wait_closed"],
)
def test_interrupted_call_leaves_the_connection_usable(call: str, protocol: str) -> None:
    process_scripts.run("interrupt", call, protocol=protocol)


@IN_WIRES
@pytest.mark.parametrize("call", ["ping", "open_stream", "close"])
def test_interrupted_wait_for_a_mute_peer_leaves_no_lock_behind(call: str, protocol: str) -> None:
    process_scripts.run("interrupt_alone", call, protocol=protocol)


@IN_WIRES
def test_bytes_queued_by_an_interrupted_write_still_go_out(protocol: str) -> None:
    process_scripts.run("interrupt_full_socket", protocol=protocol)


@IN_WIRES
def test_interrupted_wait_for_room_lets_others_go_on(protocol: str) -> None:
    process_scripts.run("interrupt_full_queue", protocol=protocol)


@pytest.mark.parametrize("presses", ["1", "2"])
def test_interrupted_server_shuts_down(presses: str) -> None:
    process_scripts.run("interrupt_serve_forever", presses)


def test_a_signal_handler_may_shut_down_the_server_whose_shutdown_it_interrupts() -> None:
    process_scripts.run("interrupt_waiting_end")


# At each fifth point of the call, and in wide runs at all.
@pytest.mark.parametrize("stride", ["5", *wide("1")])
@pytest.mark.parametrize("kind", ["server", "cluster", "beginning cluster", "link"])
def test_a_signal_handler_may_end_what_is_just_being_ended(kind: str, stride: str) -> None:
    process_scripts.run("interrupt_end", kind, stride)


def test_a_signal_handler_may_shut_down_a_server_that_is_about_to_wait_for_that() -> None:
    process_scripts.run("interrupt_end", "serve_forever", "1")


@pytest.mark.parametrize("direction", ["read", "write"])
def test_reason_of_the_application_may_use_the_connection(direction: str) -> None:
    process_scripts.run("reason_looks_at_connection", direction)


@IN_WIRES
def test_log_may_go_over_the_connection(protocol: str) -> None:
    process_scripts.run("log_goes_over_the_connection", protocol=protocol)


# Each is made of calls that are interrupted on their own, too.
LONGER = ("write-in-frames", "stream-close", "begin_close")


@pytest.mark.parametrize(
    ("call", "protocol"),
    [(call, "wsmux") for call in process_scripts.CALLS if call not in LONGER]
    + [
        pytest.param(call, wire, marks=pytest.mark.wide)
        for calls, wire in (
            (LONGER, "wsmux"),
            (process_scripts.OF_THE_WIRE, "yamux"),
            (process_scripts.OF_THE_WIRE, "bymux"),
        )
        for call in calls
    ],
)
def test_interrupt_at_any_point_of_a_call_leaves_nothing_stuck(call: str, protocol: str) -> None:
    process_scripts.run("interrupt_everywhere", call, "press", protocol=protocol)


@pytest.mark.parametrize("call", ["write", "reset", *wide("close_write", "stream-close", "close")])
def test_a_signal_handler_that_uses_the_library_leaves_nothing_stuck(call: str) -> None:
    """What it raises was raised here, and still interrupts the call that it came upon."""
    process_scripts.run("interrupt_everywhere", call, "use")


@pytest.mark.long
@pytest.mark.hang_bound(600.0)
def test_many_forks_under_load_leave_the_parent_unharmed() -> None:
    process_scripts.run("fork_under_load", "200", limit=300.0)


HOW = pytest.mark.parametrize("how", ["sigint", "alarm", "async"])


def test_alarms_at_random_moments_leave_nothing_stuck() -> None:
    process_scripts.run("interrupt_at_random", "alarm", "20")


@pytest.mark.long
@pytest.mark.hang_bound(600.0)
@HOW
def test_10_000_interrupts_at_random_moments_leave_nothing_stuck(how: str) -> None:
    process_scripts.run("interrupt_at_random", how, "3334", limit=580.0)
