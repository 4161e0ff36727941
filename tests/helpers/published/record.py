"""Hold conversations with published peers and write down what they said: run it for that.

``python -m tests.helpers.published.record`` writes a file for each peer and role into
``recordings``, a conversation a line: the seed of its script, and every step and message in order.
``<`` is what the peer sent, ``>`` what it received, each in hexadecimal. Steps follow each other
when the one before has had its effect at the other end. It needs what the interop tests need.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import wsmux
from wsmux.config import Config
from wsmux.protocols import registry
from wsmux.protocols.base import Message, MuxProtocol, Role

from ..certificates import Certificates
from ..interop.installs import install_environment, install_modules
from ..interop.peer_process import PeerError, PeerProcess
from ..timeouts import WAIT
from .replay import PEERS, RECORDINGS, Entry, Recording
from .scripts import Step, payload, script

HOST = "127.0.0.1"
QUIET = 0.03  # seconds after which an answer that has not come will not; for this recorder only
LANES = ("control_to_send", "data_to_send")
COUNT = 40  # conversations with each peer in each role

CONFIG = Config(ping_interval=None, ping_timeout=None)


class Tape:
    """Keep what passes one machine, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def wait_quiet(self, seconds: float) -> None:
        """Wait until nothing has passed for so long."""
        before = -1
        while before != len(self.entries):
            before = len(self.entries)
            time.sleep(seconds)

    def attach(self, machine: MuxProtocol) -> None:
        """Listen to everything that a machine receives and sends."""
        receive = machine.receive_data
        lanes = (getattr(machine, name) for name in LANES)

        def received(data: Any) -> None:
            self.entries.append(["<", bytes(data).hex()])
            receive(data)

        def sending(lane: Any) -> Any:
            def send() -> list[Message]:
                messages: list[Message] = lane()
                self.entries.extend([">", (head + bytes(body)).hex()] for head, body in messages)
                return messages

            return send

        methods = (received, *map(sending, lanes))
        for name, method in zip(("receive_data", *LANES), methods, strict=True):
            setattr(machine, name, method)


@contextmanager
def listening(protocol: str, tape: Tape) -> Iterator[None]:
    """Attach the tape to the machines of a wire that are made meanwhile."""
    before = registry.WIRES[protocol]

    def machine(role: Role, config: Config, state: Any) -> MuxProtocol:
        made = before.machine(role, config, state)
        tape.attach(made)
        return made

    registry.WIRES[protocol] = dataclasses.replace(before, machine=machine)
    try:
        yield
    finally:
        registry.WIRES[protocol] = before


@contextmanager
def connected(
    peer: PeerProcess, protocol: str, role: Role, certificates: Certificates
) -> Iterator[wsmux.Connection]:
    """Connect to a peer that is the client or the server."""
    tls = protocol == "js-ws"
    given: dict[str, Any] = {"host": HOST, "config": {}} | ({} if tls else {"carrier": "tcp"})
    with ExitStack() as stack:
        if role is Role.CLIENT:
            accepted: queue.Queue[wsmux.Connection] = queue.Queue()
            done = threading.Event()

            def handler(connection: wsmux.Connection) -> None:
                accepted.put(connection)
                done.wait()

            how: dict[str, Any] = {"ssl_context": certificates.server} if tls else {}
            how |= {} if tls else {"transport": "tcp"}
            server = stack.enter_context(
                wsmux.serve(handler, HOST, 0, protocols=(protocol,), config=CONFIG, **how)
            )
            stack.callback(done.set)
            given |= {"ca": certificates.authority.read_text()} if tls else {}
            peer.call("connect", port=server.port, **given)
            connection = accepted.get(timeout=WAIT)
        else:
            if tls:
                given |= {
                    "key": certificates.key.read_text(),
                    "cert": certificates.chain.read_text(),
                }
            port = peer.call("listen", **given)["port"]
            options = {"sslopt": {"ca_certs": str(certificates.authority)}} if tls else {}
            url = f"{'wss' if tls else 'tcp'}://{HOST}:{port}/"
            connection = wsmux.connect(url, protocol=protocol, config=CONFIG, **options)
        stack.callback(connection.close, timeout=WAIT)
        peer.call("connected")
        yield connection


class Talk:
    """Act out a script on a connection, each step after the effect of the one before."""

    def __init__(self, connection: wsmux.Connection, peer: PeerProcess, tape: Tape) -> None:
        self.connection, self.peer, self.tape = connection, peer, tape
        self.streams: list[wsmux.Stream] = []
        self.handles: list[int] = []

    def act(self, step: Step) -> None:
        """Do one step and wait for its effect."""
        self.tape.entries.append([*step])
        getattr(self, f"{step.side}_{step.verb}")(step)

    def ours_open(self, step: Step) -> None:
        self.streams.append(self.connection.open_stream(WAIT))
        self.streams[-1].timeout = WAIT
        self.handles.append(self.peer.call("accept")["handle"])

    def theirs_open(self, step: Step) -> None:
        self.handles.append(self.peer.call("open")["handle"])
        self.streams.append(self.connection.accept_stream(WAIT))
        self.streams[-1].timeout = WAIT

    def ours_write(self, step: Step) -> None:
        self.streams[step.stream].write(payload(step))
        left = step.number
        while left > 0:
            left -= self.peer.call("read", stream=self.handles[step.stream])["length"]

    def theirs_write(self, step: Step) -> None:
        self.peer.call("write", stream=self.handles[step.stream], hex=payload(step).hex())
        stream, left = self.streams[step.stream], step.number
        while left > 0:
            left -= len(stream.read(left))

    def ours_close(self, step: Step) -> None:
        self.streams[step.stream].close_write()
        self.peer.call("readAll", stream=self.handles[step.stream])

    def theirs_close(self, step: Step) -> None:
        self.peer.call("close", stream=self.handles[step.stream])
        assert self.streams[step.stream].read(1) == b""

    def ours_reset(self, step: Step) -> None:
        self.streams[step.stream].reset(step.number)
        try:
            self.peer.call("readAll", stream=self.handles[step.stream])
        except PeerError:
            return  # as it must be told; some peers take it for an end

    def theirs_reset(self, step: Step) -> None:
        if self.connection.protocol == "js-ws":
            call = {"stream": self.handles[step.stream], "code": step.number}
            self.peer.call("abort", **call)
            self.peer.call("cancel", **call)
        else:
            self.peer.call("reset", stream=self.handles[step.stream])
        try:
            self.streams[step.stream].read(1)
        except wsmux.StreamReset:
            return
        raise AssertionError("a reset was read as an end")


def hold(
    name: str, peer: PeerProcess, role: Role, seed: str, certificates: Certificates
) -> Recording:
    """Hold one conversation with a peer in a role, and return it."""
    protocol = PEERS[name]
    tape = Tape()
    if protocol == "yamux":
        peer.call("fresh")
    with listening(protocol, tape), connected(peer, protocol, role, certificates) as connection:
        talk = Talk(connection, peer, tape)
        for step in script(seed):
            talk.act(step)
            tape.wait_quiet(QUIET)
        tape.wait_quiet(10 * QUIET)  # nothing may be missing at the end
        return Recording(name, seed, role, list(tape.entries))


def start(name: str) -> PeerProcess:
    """Start a peer in a process of its own."""
    if name == "python-yamux":
        interpreter = install_environment("libp2p_requirements.txt", (3, 11))
        return PeerProcess.python("yamux_peer.py", interpreter)
    program = "yamux_peer.mjs" if name == "node-yamux" else "js_ws_peer.mjs"
    return PeerProcess.node(program, install_modules())


def record(name: str, certificates: Certificates) -> Iterator[Recording]:
    """Hold all conversations with one peer."""
    with ExitStack() as stack:
        process = stack.enter_context(start(name))
        for role in Role:
            for number in range(COUNT):
                yield hold(name, process, role, f"{name} {role} {number}", certificates)
                if name == "js-ws":  # which cannot be told to forget
                    stack.close()
                    process = stack.enter_context(start(name))


def main(names: list[str]) -> None:
    """Write the recordings of the peers that are named, or of all."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        certificates = Certificates.issue(Path(folder))
        for name in names or PEERS:
            kept = [
                json.dumps({"seed": each.seed, "role": each.role, "log": each.log})
                for each in record(name, certificates)
            ]
            (RECORDINGS / f"{name}.jsonl").write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
