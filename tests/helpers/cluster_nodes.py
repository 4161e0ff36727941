"""Run nodes of a cluster in processes of their own, and ask all nodes for their status."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from wsmux.cluster import Cluster, ClusterStatus, NodeStatus

from .timeouts import WAIT
from .waiting import wait_for

__all__ = ["LEASE", "asked", "of", "start_node"]

# Seconds of a lease: so short that a test can wait for its end, but a busy machine renews it.
LEASE = 2.0

# A node with a client of its own, whose names are arguments, that answers each stream.
NODE = """
import sys, wsmux
from wsmux.cluster import Cluster
client, connection = wsmux.pair()
cluster = Cluster(sys.argv[1], namespace=sys.argv[2], lease=float(sys.argv[3]))
for name in sys.argv[4:]:
    cluster.join(connection, name)
print(cluster.node, flush=True)
for stream in client:
    stream.write(stream.read(100))
    stream.close()
"""


def start_node(
    url: str, namespace: str, *names: str, lease: float = LEASE
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", NODE, url, namespace, str(lease), *names]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def asked(cluster: Cluster, *nodes: Cluster, **options: Any) -> ClusterStatus:
    """Return the status of a cluster, once Redis knows these nodes."""
    ids = {each.node for each in (cluster, *nodes)}
    options.setdefault("timeout", WAIT)
    wait_for(lambda: ids <= {each.node for each in cluster.status(**options).nodes})
    return cluster.status(**options)


def of(status: ClusterStatus, node: str) -> NodeStatus:
    (found,) = (each for each in status.nodes if each.node == node)
    return found
