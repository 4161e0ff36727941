"""Look at a cluster: who is connected, a stream to somebody, the messages of a topic.

``who`` prints one connection a line: its name, its process, and since when. ``open`` connects stdin
and stdout to a stream, as ``wsmux cat`` does. ``publish`` prints the position of each message, once
it is kept; ``subscribe`` prints messages until Ctrl-C, and on stderr what was dropped before it was
read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .cat import Copy, add_copying
from .redis_urls import add_redis, with_password
from .terminal import CommandError, emit, positive_int, talk

if TYPE_CHECKING:
    from ..cluster import Cluster, TopicMessage

EPILOG = "Example: wsmux cluster who 'user:*' --redis redis://localhost:6379"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux cluster``."""
    parser.add_argument("action", choices=list(_ACTIONS))
    parser.add_argument(
        "target",
        nargs="?",
        metavar="NAME",
        help="with who: a name, or the beginning of some with * behind it; with open: a name; "
        "with publish and subscribe: a topic",
    )
    parser.add_argument(
        "message", nargs="?", help="with publish: a text; each line of stdin without it"
    )
    add_redis(parser)
    add_cluster(parser)
    parser.add_argument(
        "--since",
        default="new",
        metavar="PLACE",
        help="with subscribe: 'oldest', or the position behind which to begin; 'new' by default",
    )
    parser.add_argument(
        "--most", type=positive_int, default=1000, metavar="N", help="with who; 1000 by default"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_copying(parser)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options that distinguish a cluster from others of the same Redis."""
    parser.add_argument("--namespace", default="default", help="of the cluster; 'default' else")
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="a file with the key that its nodes share"
    )


def cluster_of(redis: str, args: argparse.Namespace) -> Cluster:
    """Take part in the cluster of a Redis that is meant; close it.

    Raises:
        ValueError: the URL, the namespace or the key is wrong.
        ImportError: the client of Redis is missing.
        OSError: the file of the key cannot be read.
    """
    from ..cluster import Cluster

    key = None if args.key_file is None else args.key_file.read_text().strip()
    return Cluster(with_password(redis), namespace=args.namespace, key=key)


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    if args.action != "who" and args.target is None:
        raise CommandError(f"name {_WANTED[args.action]}: wsmux cluster {args.action} NAME", 2)
    if args.message is not None and args.action != "publish":
        raise CommandError("a message is for 'wsmux cluster publish'", 2)
    try:
        with cluster_of(args.redis, args) as cluster:
            _ACTIONS[args.action](cluster, args)
    except (ValueError, ImportError) as error:
        raise CommandError(str(error), 2) from error
    return 0


def _who(cluster: Cluster, args: argparse.Namespace) -> None:
    for each in cluster.who(args.target or "*", most=args.most):
        if args.json:
            emit(json.dumps(each._asdict()))
        else:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.since))
            emit(f"{each.name}\t{each.node[:8]}\t{since}")


def _open(cluster: Cluster, args: argparse.Namespace) -> None:
    with cluster.open_stream(args.target, timeout=args.timeout) as stream:
        stream.timeout = args.timeout
        Copy(stream, args, args.target).run()


def _publish(cluster: Cluster, args: argparse.Namespace) -> None:
    given = None if args.message is None else [os.fsencode(args.message)]
    for line in sys.stdin.buffer if given is None else given:
        position = cluster.publish(args.target, line.removesuffix(b"\n"))
        emit(json.dumps({"position": str(position)}) if args.json else str(position))


def _subscribe(cluster: Cluster, args: argparse.Namespace) -> None:
    from ..cluster import TopicGap

    with cluster.subscribe(args.target, since=args.since) as subscription:
        place = subscription.position or "all that there was"
        talk(f"subscribed to {args.target} after {place}; Ctrl-C ends it")
        while True:
            try:
                message = subscription.read()
            except TopicGap as error:
                talk(str(error))
            else:
                emit(_shown(message, whole=args.json))


def _shown(message: TopicMessage, *, whole: bool) -> str:
    """Return a message on one line; as JSON, bytes that are no text in base64."""
    try:
        text = message.data.decode()
    except UnicodeDecodeError:
        text = None
    if not whole and text is not None and text.isprintable():
        return text
    fields = {"data": text} if text is not None else {"base64": b64encode(message.data).decode()}
    return json.dumps({"position": str(message.position), **fields} if whole else fields)


_ACTIONS: dict[str, Callable[[Cluster, argparse.Namespace], None]] = {
    "who": _who,
    "open": _open,
    "publish": _publish,
    "subscribe": _subscribe,
}

_WANTED = {"open": "a connection", "publish": "a topic", "subscribe": "a topic"}
