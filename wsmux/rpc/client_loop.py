"""Be a client's I/O thread: dial, read, keep time. How it fits in is told in ``client_engine``."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from ..bell import Bell
from ..channel import Channel
from ..deadlines import Deadline
from ..exceptions import WsmuxError
from ..logs import logger
from ..protocols.carrier import Kind, Received
from ..starting import daemon_thread
from ..waiter import wake
from .carriers import Gone, hang_up
from .connector_states import (
    ConnectorEvent,
    ConnectorState,
    Dial,
    Hangup,
    HelloWanted,
    MetadataWanted,
)

if TYPE_CHECKING:
    from .client_engine import ClientEngine

__all__ = ["ClientLoop"]

_log = logger("wsmux.rpc")

_Batches = Generator[list[Received]]


class ClientLoop:
    """Perform what the connector of a client orders, until it is closed."""

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._connector = engine.connector

    def run(self) -> None:
        """Be the thread."""
        engine = self._engine
        try:
            while self._work():
                pass
        except Exception:
            _log.exception("the I/O thread of %s failed; its calls end", self._connector.own_id)
            wakes: list[Bell] = []
            with engine.mutex:
                engine.channel = None
                self._connector.close()
                engine.settle_locked(wakes)
            wake(wakes)

    def _work(self) -> bool:
        """Do what was ordered, or wait for something to do; false when it is all over."""
        engine, wakes = self._engine, list[Bell]()
        with engine.mutex:
            now = time.monotonic()
            due = self._connector.next_timer()
            if due is not None and now >= due:
                self._connector.handle_timer(now)
            engine.settle_locked(wakes)
            orders, engine.orders = engine.orders, []
            if not orders and engine.stopping:
                return False
        wake(wakes)
        for order in orders:
            self._perform(order)
        if not orders:
            with engine.mutex:
                if not engine.orders and not engine.stopping:
                    self._rest_locked()
        return True

    def _rest_locked(self) -> None:
        """Wait for an order, or a time, even one that is set meanwhile."""
        engine = self._engine
        due = self._connector.next_timer()
        left = None if due is None else max(0.0, due - time.monotonic())
        engine.alarm = math.inf if due is None else due
        engine.idle.wait(engine.mutex, Deadline(left))

    def _perform(self, order: ConnectorEvent) -> None:
        match order:
            case Dial(attempt):
                self._connect(attempt)
            case MetadataWanted(session):
                self._make_metadata(lambda value: self._connector.refresh(session, value), None)
            case HelloWanted(attempt):
                self._make_metadata(
                    lambda value: self._connector.hello(attempt, value, time.monotonic()),
                    lambda text: self._connector.hello_failed(attempt, text, time.monotonic()),
                )
            case Hangup():
                return  # of a connection that is left already
            case _:
                raise AssertionError(f"an order that nobody knows: {order}")

    def _connect(self, attempt: int) -> None:
        """Make a connection and stay with it until it is gone."""
        engine = self._engine
        try:
            channel = engine.dial(Deadline(engine.options.connection_timeout))
        except (OSError, WsmuxError) as error:
            _log.info("%s: attempt %d: %s", self._connector.own_id, attempt, error)
            text, fatal = str(error), isinstance(error, Gone)
            if not fatal and engine.is_fatal is not None:
                fatal = engine.is_fatal(error)
            self._with_connector(
                lambda: self._connector.dial_failed(attempt, time.monotonic(), text, fatal=fatal)
            )
            return
        batches = channel.batches()
        wakes: list[Bell] = []
        with engine.mutex:
            engine.channel = channel
            self._connector.dialled(attempt, time.monotonic())
            engine.settle_locked(wakes)
        engine.after(wakes)
        if not self._leaves(attempt):
            self._converse(channel, batches, attempt)
        with engine.mutex:
            engine.channel = None
            self._connector.lost(attempt, time.monotonic())
            engine.settle_locked(wakes)
        wake(wakes)
        engine.closing = _retire(channel, batches)

    def _converse(self, channel: Channel, batches: _Batches, attempt: int) -> None:
        engine, wakes = self._engine, list[Bell]()
        for messages in batches:
            with engine.mutex:
                self._feed_locked(attempt, messages, channel.now, wakes)
                channel.set_owner_timer(self._connector.next_timer())
            wake(wakes)
            if channel.error is not None or (engine.orders and self._leaves(attempt)):
                return

    def _feed_locked(
        self, attempt: int, messages: list[Received], now: float, wakes: list[Bell]
    ) -> None:
        engine, connector = self._engine, self._connector
        for kind, data in messages:
            # A text message is none of River's: it is as undecodable as an empty one.
            connector.receive(attempt, data if kind is Kind.BINARY else b"", now)
            engine.apply_locked(wakes, len(data))
        due = connector.next_timer()
        if due is not None and now >= due:
            connector.handle_timer(now)
        engine.settle_locked(wakes)

    def _leaves(self, attempt: int) -> bool:
        """Do what was ordered; tell whether the connection of this attempt is to be left.

        An order to dial is for later: it is performed when this connection has been left.
        """
        engine = self._engine
        while True:
            with engine.mutex:
                if not engine.orders or isinstance(engine.orders[0], Dial):
                    return bool(engine.orders)
                order = engine.orders.pop(0)
            if isinstance(order, Hangup):
                if order.attempt == attempt:
                    return True
            else:
                self._perform(order)

    def _make_metadata(
        self, use: Callable[[Any], None], fail: Callable[[str], None] | None
    ) -> None:
        """Have the application make metadata, in a thread that may block, and use it."""
        make = self._engine.metadata
        if make is None:
            self._with_connector(lambda: use(None))
            return

        def run() -> None:
            try:
                value = make()
            except Exception as error:
                _log.exception("no metadata for a handshake")
                text = str(error)
                if fail is not None:
                    self._with_connector(lambda: fail(text))
                return
            self._with_connector(lambda: use(value))

        daemon_thread(target=run, name="wsmux-rpc-metadata").start()

    def _with_connector(self, action: Callable[[], None]) -> None:
        engine, wakes = self._engine, list[Bell]()
        with engine.mutex:
            if self._connector.state is not ConnectorState.CLOSED:
                action()
                engine.settle_locked(wakes)
        engine.after(wakes)


def _retire(channel: Channel, batches: _Batches) -> threading.Thread | None:
    """Close a connection that is left; a thread of its own waits for the peer's part."""
    if channel.cut:
        batches.close()
        channel.discard()  # for batches that were never begun
        return None
    hang_up(channel)

    def drain() -> None:
        for _ in batches:
            pass

    thread = daemon_thread(target=drain, name=f"{channel.name}-closing")
    thread.start()
    return thread
