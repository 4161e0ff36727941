"""Be the clients of a cluster that come and go, and look at each byte that reaches them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import wsmux
from benchmarks.cluster.site import BASE, LONGEST, PIECE, node_of, order, pattern
from wsmux.cluster import Cluster, Position, Presence
from wsmux.cluster.positions import parse_position

from ..timeouts import WAIT
from .cluster_site import deliver, running

__all__ = ["Crowd", "Seen", "Visitor"]

# Seconds: of an attempt to connect, of an order, and between the bytes of a stream.
CONNECT_TIME, ORDER_TIME, READ_TIME = 10.0, 10.0, 30.0

# Seconds that a call may take beyond its limit, while this process runs: longer than another one
# ever stands still.
SLACK = 40.0

# Seconds for which a client waits for streams before it looks at what it has left.
LOOK = 0.2

# Names that several clients may have at once, and the topic of all.
SHARED, TOPIC = [f"shared:{number}" for number in range(40)], "news"

# One client in so many reads slowly: so many bytes, and then nothing for so many seconds.
SLOW, SIP, REST = 10, 4096, 0.02

# Bytes that are sent to clients, at most.
LARGEST = 192 * 1024


class Seen:
    """Count what happens, and keep what must not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.latest = (0.0, "none")  # seconds beyond the limit of a call, at most, and which
        self.opened: list[float] = []
        self.published: list[tuple[Position, bytes]] = []

    def count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1

    def note(self, wrong: str) -> None:
        with self._lock:
            self.wrong.append(wrong)

    def note_late(self, what: str, late: float) -> None:
        with self._lock:
            self.latest = max(self.latest, (late, what))
        if late > SLACK:
            self.note(f"{what} took {late:.1f} s longer than it may")


class Visitor:
    """Be one connection of a client: take the streams that come, and answer them.

    What a client has left is still its own until the node has said so, and until the streams that
    were opened before have been taken, which stand in order.
    """

    def __init__(self, url: str, number: int, seen: Seen) -> None:
        self.base = f"{BASE}{number}"
        self.node = ""  # until that is known
        self._slow = number % SLOW == 0
        self._seen = seen
        self._lock = threading.Lock()
        self._names: dict[str, Presence | None] = {self.base: None}  # None until that is known
        self._left: set[str] = set()  # as the node has said
        self.connection = wsmux.connect(f"{url}?name={self.base}", timeout=CONNECT_TIME)
        self._thread = threading.Thread(target=self._take_all)
        self._thread.start()

    def settle(self) -> None:
        """Learn which node this is connected to."""
        self.node = node_of(self.connection, ORDER_TIME)[0]

    # What others send

    def _take_all(self) -> None:
        with suppress(wsmux.ConnectionClosed):
            while True:
                with self._lock:
                    left = set(self._left)
                try:
                    stream = self.connection.accept_stream(LOOK)
                except TimeoutError:
                    with self._lock:  # all that was opened before they were left has been taken
                        self._left -= left
                        for name in left:
                            del self._names[name]
                    continue
                try:
                    self._take(stream)
                except (wsmux.StreamError, TimeoutError) as error:
                    stream.reset()
                    self._seen.count(f"client: {type(error).__name__}")

    def _take(self, stream: wsmux.Stream) -> None:
        with stream:
            stream.timeout = READ_TIME
            line = stream.readline(LONGEST)
            if not line:
                return self._seen.note(f"{self.base} got a stream that ended before it began")
            header = json.loads(line)
            self._check(header)
            got = 0
            while data := stream.read(SIP if self._slow else PIECE):
                while len(data) % 8:
                    data += stream.read(8 - len(data) % 8)
                if data != pattern(header["key"], got, len(data)):
                    self._seen.note(f"{self.base} got other bytes from {got} on: {header}")
                got += len(data)
                if self._slow:
                    time.sleep(REST)
            if got != header["size"]:
                self._seen.note(f"{self.base} got {got} bytes and a clean end: {header}")
            answer = {"by": self.base, "names": self.names(), "got": got}
            stream.write(json.dumps(answer).encode() + b"\n")
            self._seen.count("taken")

    def _check(self, header: dict[str, Any]) -> None:
        presence = header["presence"] and Presence(*header["presence"])
        with self._lock:
            known = self._names.get(header["to"], False)
        if known is False:
            self._seen.note(f"{self.base}, which is {self.names()}, got what was for {header}")
        elif presence and (
            presence.node != (self.node or presence.node) or known not in (None, presence)
        ):
            self._seen.note(f"{self.base}, as {known} at {self.node}, got what was for {presence}")

    # What it does

    def names(self) -> list[str]:
        with self._lock:
            return list(self._names)

    def join(self, name: str) -> None:
        with self._lock:
            if name in self._names:
                return
            self._names[name] = None
        told = order(self.connection, ORDER_TIME, do="join", name=name)
        with self._lock:
            self._names[name] = Presence(*told)

    def leave(self, name: str) -> None:
        with self._lock:
            presence = self._names.get(name)
            if presence is None or name in self._left:
                return
        order(self.connection, ORDER_TIME, do="leave", presence=presence)
        with self._lock:
            if self._names.get(name) == presence:  # another thread may have told the node as well
                self._left.add(name)

    def end(self, clean: bool) -> None:
        """Leave; the thread ends, too."""
        if clean:
            self.connection.close(ORDER_TIME)
        else:
            self.connection.abort()
        self._thread.join(WAIT)
        if self._thread.is_alive():
            self._seen.note(f"the thread of {self.base} hangs")


class Crowd:
    """Let ``count`` clients come and go, and open streams to each other from any node.

    Args:
        urls: of the nodes; they may change.
        cluster: of this process, which opens streams, too.
    """

    def __init__(
        self, count: int, urls: Sequence[str], cluster: Cluster, seed: int, seen: Seen
    ) -> None:
        self._urls = urls
        self._cluster = cluster
        self._seen = seen
        self._over = threading.Event()
        self._visitors: dict[int, Visitor | None] = dict.fromkeys(range(count))
        self._locks = [threading.Lock() for _ in range(count)]
        self._keys = iter(range(1, 1 << 32))
        self._threads = [
            threading.Thread(target=self._drive, args=(random.Random(seed + number),))
            for number in range(max(2, count // 10))
        ]
        for thread in self._threads:
            thread.start()

    def visitors(self) -> list[Visitor]:
        """Return those whose connections are open."""
        return [each for each in self._visitors.values() if each and not each.connection.closed]

    def stop(self) -> None:
        """Let nobody do anything more, and wait for what is being done."""
        self._over.set()
        for thread in self._threads:
            thread.join(SLACK + WAIT)
            if thread.is_alive():
                self._seen.note("a thread of the crowd hangs")

    def end(self) -> None:
        """Have all leave, every other one without a word."""
        for number, each in self._visitors.items():
            if each is not None:
                each.end(clean=number % 2 == 0)

    def _drive(self, chance: random.Random) -> None:
        while not self._over.wait(chance.uniform(0.0, 0.05)):
            number = chance.choice(list(self._visitors))
            try:
                self._act(number, chance)
            except (wsmux.WsmuxError, OSError) as error:  # OSError: nobody listens there any more
                self._seen.count(f"crowd: {type(error).__name__}")
            except Exception as error:
                self._seen.note(f"a client's call failed with {error!r}")

    def _act(self, number: int, chance: random.Random) -> None:
        visitor = self._visitors[number]
        if visitor is None or visitor.connection.closed:
            with self._locks[number]:
                if self._visitors[number] is visitor:
                    self._come(number, chance, visitor)
            return
        does = chance.choices(
            ["deliver", "deliver here", "join", "leave", "publish", "go"], [50, 15, 15, 10, 10, 3]
        )[0]
        if does == "go":
            with self._locks[number]:
                if self._visitors[number] is visitor:
                    visitor.end(clean=chance.random() < 0.5)
        elif does == "join":
            visitor.join(chance.choice(SHARED))
        elif does == "leave":
            visitor.leave(chance.choice(visitor.names()))
        elif does == "publish":
            self._publish(visitor)
        else:
            self._deliver(visitor if does == "deliver" else None, chance)
        self._seen.count(does)

    def _come(self, number: int, chance: random.Random, before: Visitor | None) -> None:
        if before is not None:
            before.end(clean=False)
        visitor = self._visitors[number] = Visitor(chance.choice(self._urls), number, self._seen)
        visitor.settle()
        self._seen.count("come")

    def _publish(self, visitor: Visitor) -> None:
        text = str(next(self._keys))
        told = order(visitor.connection, ORDER_TIME, do="publish", topic=TOPIC, text=text)
        if isinstance(told, str):
            position = parse_position(told)
            assert isinstance(position, Position)
            self._seen.published.append((position, text.encode()))

    def _deliver(self, visitor: Visitor | None, chance: random.Random) -> None:
        to: str | Presence = chance.choice([chance.choice(SHARED), f"{BASE}{self._number(chance)}"])
        if chance.random() < 0.3 and (found := self._cluster.who(str(to))):
            to = chance.choice(found)
        timeout = chance.choice([0.3, 2.0, 10.0])
        size = 8 * chance.choice([0, 1, chance.randrange(LARGEST // 8)])
        key = next(self._keys)
        begun = running()
        if visitor is None:
            told = deliver(self._cluster, to, key, size, timeout)
        else:
            fields = {"do": "deliver", "to": to, "key": key, "size": size, "timeout": timeout}
            longest = timeout * (3 + size // PIECE)
            told = order(visitor.connection, longest + SLACK, **fields)
            self._seen.note_late(f"an order to reach {to}", running() - begun - longest)
        self.check_told(to, size, told)

    def check_told(self, to: str | Presence, size: int, told: dict[str, Any]) -> None:
        """Note what became of a stream."""
        self._seen.count(f"stream: {told['result']}")
        self._seen.note_late(f"{told['slowest']} ({told['result']})", told["late"])
        if told["result"] == "sent":
            self._seen.opened.append(told["opened"])
            answer = json.loads(told["answer"])
            name = to.name if isinstance(to, Presence) else to
            if answer["got"] != size or (name.startswith(BASE) and name != answer["by"]):
                self._seen.note(f"of {size} bytes for {to}, {answer}")

    def _number(self, chance: random.Random) -> int:
        return chance.randrange(len(self._locks))
