"""Pass the socket of a client that returns to the process that has its session.

Several processes serve one address, such as the workers of gunicorn, and the system or a balancer
gives a client that comes back to any of them. Its HELLO names the epoch of the process that has
the session, and that process listens on a Unix socket named after its epoch, in a folder that the
processes share and no other user can enter. So whoever accepted the client asks there, and nothing
is kept anywhere else::

    the one that accepted      the owner
    origin and HELLO      ->   finds the session, checks the mac, the origin and the generation
                          <-   GIVE; or LOST or REFUSED, which the client is told
    the descriptor        ->   checks again, answers the client over it

Messages are those of a carrier, in its frames; HELLO goes as it came, behind the 32 bytes that
stand for the path and the user of the request. Nothing else has to go along: no byte behind HELLO
has been read, no extension is ever agreed on, and the wire is the session's own. Each side checks
that the other is a process of the same user. A HELLO that is forged, or has been used, moves no
socket. An owner that stands still is never sent one, so it keeps no client waiting but by its
silence.

The one that accepted closes its descriptor and nothing more: a shutdown would end the connection
for the owner, too. Where it cannot pass it on, the client is told nothing and tries again, as long
as the owner may still have the session: it takes too long, stands still, or has too much to do. If
the owner has gone, nobody listens, and the session is lost at once.

A process listens from its first session on, so that one that only forks others never does. The
owner has a thread for each client that is passed to it, for a few milliseconds; the other process
uses the thread that read HELLO. No lock is held while either waits.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import Config
from ..exceptions import HandshakeError, NoThreadError, WsmuxError
from ..handshake.greeting import receive_greeting, send_greeting
from ..protocols.base import Role
from ..protocols.resumption import Hello, Refusal, parse_answer, parse_hello
from ..runtime.deadline import Deadline
from ..runtime.files import private_folder
from ..runtime.logs import logger
from ..runtime.unix_sockets import check_same_user, remove_left
from .acceptor import Acceptor, listen_unix

__all__ = ["ANSWER_TIME", "AT_ONCE", "TakeOver", "hand_over"]

# Seconds for which either process waits for the other.
ANSWER_TIME = 2.0

# Clients that are being passed to a process at once; others try again.
AT_ONCE = 128

# The owner's word that it wants the descriptor. No message of a session begins so.
GIVE = b"\xffgive"

GONE = Refusal(True, "the process that had the session has ended")

# Says whether a session may be resumed with a HELLO: a refusal, or false if not yet.
Check = Callable[[Hello, bytes, bytes, bytes], Refusal | bool]
# Answers a client's HELLO over its socket, and owns that.
Resume = Callable[[socket.socket, Hello, bytes, bytes, bytes, Deadline], object]

# Bytes of the origin of a client, which stand before its HELLO.
ORIGIN_SIZE = 32

_log = logger("wsmux")


def _path(folder: Path, epoch: bytes) -> str:
    return str(folder / f"{epoch.hex()}.sock")


def hand_over(
    folder: Path, epoch: bytes, message: bytes, sock: socket.socket, deadline: Deadline
) -> Refusal | None:
    """Pass a client to the process of an epoch, which owns another descriptor of it from then on.

    Returns the refusal to tell the client instead, if there is one. Blocks for ``ANSWER_TIME`` at
    most.

    Args:
        folder: the one that the processes share.
        message: the client's origin and HELLO.
        sock: a plain socket, which stays the caller's; it may only be closed.

    Raises:
        HandshakeError, OSError: the owner did not answer. The client may try again.
    """
    left = deadline.remaining()
    within = Deadline(ANSWER_TIME if left is None else min(ANSWER_TIME, left))
    with socket.socket(socket.AF_UNIX) as owner:
        owner.settimeout(within.remaining())
        try:
            owner.connect(_path(folder, epoch))
        except (FileNotFoundError, ConnectionRefusedError):
            return GONE
        check_same_user(owner)
        send_greeting(owner, Role.CLIENT, message, within)
        answer = receive_greeting(owner, Role.CLIENT, within)
        if answer != GIVE:
            refusal = parse_answer(answer)
            if isinstance(refusal, Refusal):
                return refusal
            raise HandshakeError("another process welcomed a client that it was not given")
        owner.settimeout(within.remaining())
        socket.send_fds(owner, [b"\0"], [sock.fileno()])
    return None


def receive_socket(giver: socket.socket) -> socket.socket:
    """Return the socket that another process passes, which no program inherits.

    Blocks for the timeout of ``giver``.

    Raises:
        HandshakeError: it passes none, or something else; nothing stays open.
        OSError: it did not in time, or has gone.
    """
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    _, passed, told, _ = socket.recv_fds(giver, 1, 1, flags)
    try:
        if told & socket.MSG_CTRUNC or len(passed) != 1:
            raise HandshakeError(
                f"one descriptor is passed for each client, and {len(passed)} came"
                + (": more were sent, or this process has none left" if told else "")
            )
        os.set_inheritable(passed[0], False)  # where there is no such flag
        sock = socket.socket(fileno=passed[0])
        if sock.type != socket.SOCK_STREAM:
            sock.detach()  # it is closed below
            raise HandshakeError("what was passed is not the socket of a connection")
        return sock
    except BaseException:
        for each in passed:
            os.close(each)
        raise


class TakeOver(Acceptor):
    """Take the clients that other processes accepted, and whose sessions this one has.

    Args:
        folder: the one that the processes share; it is made, and sockets of dead ones are removed.
        epoch: of this process.
        check, resume: what is done with a HELLO, and with the client of one that may resume.

    Raises:
        PermissionError: other users have access to the folder.
        OSError, NoThreadError: this process cannot listen there.
    """

    def __init__(self, folder: Path, epoch: bytes, check: Check, resume: Resume) -> None:
        self._check = check
        self._resume = resume
        private_folder(folder)
        remove_left(folder)
        path = _path(folder, epoch)
        listener = listen_unix(path)
        try:
            super().__init__(
                listener,
                Config(),
                scheme="unix",
                http=False,
                ssl_context=None,
                max_connections=AT_ONCE,
            )
        except NoThreadError:
            os.unlink(path)
            raise

    def shutdown(self, timeout: float | None = 0.0) -> None:
        """Take nobody any more, and wait a moment for those that are being passed."""
        self._shut_down_once(timeout)

    def _end(self, deadline: Deadline) -> None:
        self._join_threads(Deadline(ANSWER_TIME))

    def _serve(self, sock: socket.socket, address: Any) -> None:
        deadline = Deadline(ANSWER_TIME)
        try:
            with sock, self._awaiting(sock):
                check_same_user(sock)
                message = receive_greeting(sock, Role.SERVER, deadline)
                origin = message[:ORIGIN_SIZE]
                hello, signed, mac = parse_hello(message[ORIGIN_SIZE:])
                answer = self._check(hello, signed, mac, origin)
                if isinstance(answer, Refusal):
                    send_greeting(sock, Role.SERVER, answer.encode(), deadline)
                if answer is not True:
                    return
                send_greeting(sock, Role.SERVER, GIVE, deadline)
                sock.settimeout(deadline.remaining())
                client = receive_socket(sock)
            self._resume(client, hello, signed, mac, origin, deadline)
        except (WsmuxError, OSError) as error:
            _log.info("a client of another process was not taken: %s", error)
