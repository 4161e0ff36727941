"""Collect the status of all nodes of a cluster, or the reason why a node gives none.

Redis knows who has a lease, and since when it was not renewed. What goes on in a process only that
process knows, so each is asked over its link, all at the same time. One that stands still does not
answer: then the others are told of all the same, when the time is up. Its lease ends soon after; it
is remembered for some time, and not asked any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..diagnostics.status import VERSION as STATUS_VERSION
from ..runtime.deadline import Deadline
from ..runtime.logs import logger, printable
from ..runtime.parking import OneShotEvent
from ..runtime.thread_pool import ThreadPool
from .errors import Unreachable
from .records import Known, Listed, Node

__all__ = [
    "ASKERS",
    "MAX_COUNTED",
    "MAX_NAMES",
    "MAX_NODES",
    "ClusterCounts",
    "ClusterStatus",
    "NodeStatus",
    "ask_all",
    "count",
]

# Version of what ``ClusterStatus.document`` returns; readers refuse any other.
VERSION = 1

# Nodes that are asked, and names of each.
MAX_NODES, MAX_NAMES = 100, 20

# Nodes whose members and leases are counted without asking them.
MAX_COUNTED = 1000

# The part of its lease after which a node should have renewed it: it does so after a third.
OVERDUE = 0.5

# Threads that ask them, for all that want to know it at the same time.
ASKERS = 32

# Characters of the sentence why a node has told nothing.
MAX_TEXT = 300

_log = logger("wsmux.cluster")


class NodeStatus(NamedTuple):
    """Describe one process of a cluster.

    Attributes:
        node: its id in the cluster.
        host: the name of its machine, and
        pid: its process id there; ``None`` if its record in Redis does not say so.
        renewed: seconds since it has renewed its lease, which it does three times in one; ``None``
            if unknown.
        members: how many connections have joined there, each counted with each of its names.
        names: up to 20 of their names.
        status: what ``LiveSocket`` would publish of it, with the 20 connections at most that are of
            interest; ``None`` if it was not told.
        why: a sentence why not; empty otherwise.
    """

    node: str
    host: str | None
    pid: int | None
    renewed: float | None
    members: int
    names: list[str]
    status: dict[str, Any] | None
    why: str


class ClusterStatus(NamedTuple):
    """Describe the processes of a cluster.

    Attributes:
        cluster: its namespace.
        nodes: those that have a lease, 100 at most, those whose lease ends first; and up to 100
            whose lease has ended in the last ten minutes without their leaving. They stand by host
            and process id.
        left_out: how many more there are.
        stalled_after: seconds without progress after which something counts as stalled.
    """

    cluster: str
    nodes: list[NodeStatus]
    left_out: int
    stalled_after: float

    def document(self) -> dict[str, Any]:
        """Return all of it, ready for ``json.dumps``."""
        return {
            "version": VERSION,
            "cluster": self.cluster,
            "time": time.time(),
            "stalled_after": self.stalled_after,
            "nodes": [each._asdict() for each in self.nodes],
            "nodes_left_out": self.left_out,
        }


class ClusterCounts(NamedTuple):
    """Describe a cluster by what Redis knows of it, for metrics; no process is asked.

    Attributes:
        nodes: how many processes have a lease.
        overdue: how many of them have not renewed it for half of it: they are stopped, or have lost
            Redis. Soon they are lost.
        lost: how many more have had a lease in the last ten minutes, and have not left; 100 at
            most.
        members: how many connections have joined, each counted with each of its names.
        renewed_max: seconds since the one that is last has renewed its lease.
    """

    nodes: int
    overdue: int
    lost: int
    members: int
    renewed_max: float


def count(listed: Listed) -> ClusterCounts:
    """Return the sums of nodes that Redis knows."""
    leases = [
        (each.renewed, each.process.lease)
        for each in listed.known
        if each.renewed is not None and each.process is not None
    ]
    return ClusterCounts(
        nodes=len(listed.known) + listed.left_out,
        overdue=sum(renewed > OVERDUE * lease for renewed, lease in leases),
        lost=len(listed.lost),
        members=sum(each.members for each in listed.known),
        renewed_max=max((renewed for renewed, _ in leases), default=0.0),
    )


class _Question:
    """Hold what one node is asked, and what became of it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.begun = False
        self.done = OneShotEvent()
        self.status: dict[str, Any] | None = None
        self.why = ""

    def ask(self, ask: Callable[[Node], dict[str, Any]], deadline: Deadline) -> None:
        try:
            if deadline.expired():
                return
            self.begun = True
            status = ask(self.node)
            if status.get("version") == STATUS_VERSION:
                self.status = status
            else:
                told = printable(repr(status.get("version")), MAX_TEXT)
                self.why = f"its status is of version {told}, this is for {STATUS_VERSION}"
        except Unreachable as error:
            if not isinstance(error.__cause__, TimeoutError):
                self.why = printable(str(error), MAX_TEXT)
        except Exception:
            self.why = "asking it has failed: see the log of who asked"
            _log.exception("node %s cannot be asked for its status", self.node.id[:8])
        finally:
            self.done.set()


def ask_all(
    known: Sequence[Known],
    pool: ThreadPool,
    ask: Callable[[Node], dict[str, Any]],
    deadline: Deadline,
    within: float,
) -> list[NodeStatus]:
    """Ask nodes for their status, all at the same time; return what is known in the same order.

    Args:
        known: the nodes.
        pool: runs the questions.
        ask: asks one node, and gives up at the deadline.
        deadline: when those that have not answered are given up.
        within: the seconds that they had, for people.
    """
    questions = {each.id: _Question(each.node) for each in known if each.node is not None}
    for question in questions.values():
        pool.submit(lambda question=question: question.ask(ask, deadline))  # type: ignore[misc]
    return [_node_status(each, questions.get(each.id), deadline, within) for each in known]


def _node_status(
    known: Known, question: _Question | None, deadline: Deadline, within: float
) -> NodeStatus:
    status, why = None, printable(known.why, MAX_TEXT)
    if question is not None:
        if question.done.wait(deadline.remaining()):
            status, why = question.status, question.why
        if status is None and not why:
            why = f"no answer within {within:g} s: its process may stand still"
            if not question.begun:
                why = f"it was not asked within {within:g} s: {ASKERS} others did not answer"
    process = known.process
    return NodeStatus(
        node=known.id,
        host=None if process is None else process.host,
        pid=None if process is None else process.pid,
        renewed=None if known.renewed is None else round(known.renewed, 3),
        members=known.members,
        names=known.names,
        status=status,
        why=why,
    )
