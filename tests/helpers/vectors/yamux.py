"""Whole conversations, written by hand from the specification of Yamux.

Each line is one step: ``>`` the machine receives these bytes, ``<`` it has sent exactly these,
``!`` it has reported exactly these events, and anything else is a call. Bytes are hex, head by
head: version, type, flags, stream id, length.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wsmux.protocols.base import Role


@dataclass
class Talk:
    """Hold one conversation, seen by ``role``."""

    role: Role
    lines: str
    limits: dict[str, int] = field(default_factory=dict)
    error: str = ""


C, S = Role.CLIENT, Role.SERVER

TALKS = {
    "a client opens a stream and is acknowledged": Talk(
        C,
        """
        open_stream()
        < 00 01 0001 00000001 00000000
        > 00 01 0002 00000001 00000000
        ! []
        """,
    ),
    "a server opens a stream and is acknowledged by data": Talk(
        S,
        """
        open_stream()
        < 00 01 0001 00000002 00000000
        > 00 00 0002 00000002 00000002 6869
        ! [DataReceived(2, b"hi")]
        """,
    ),
    "a request follows its SYN without waiting": Talk(
        C,
        """
        open_stream()
        send_data(1, b"hello")
        close_write(1, 0.0)
        < 00 01 0001 00000001 00000000 | 00 00 0000 00000001 00000005 68656c6c6f
        < 00 01 0004 00000001 00000000
        > 00 01 0002 00000001 00000000
        > 00 00 0004 00000001 00000003 627965
        ! [DataReceived(1, b"bye"), StreamEnded(1), StreamFinished(1)]
        """,
    ),
    "a window of 1 MiB is announced with SYN": Talk(
        C,
        """
        open_stream()
        < 00 01 0001 00000001 000c0000
        """,
        {"receive_window": 0x100000},
    ),
    "a window of 1 MiB is announced with ACK": Talk(
        S,
        """
        > 00 01 0001 00000001 00000000
        ! [StreamOpened(1)]
        accept(1, 0x100000)
        < 00 01 0002 00000001 000c0000
        """,
    ),
    "SYN, data and FIN in one frame": Talk(
        S,
        """
        > 00 00 0005 00000003 00000002 6f6b
        ! [StreamOpened(3)]
        accept(3, 0x40000)
        ! [DataReceived(3, b"ok"), StreamEnded(3)]
        < 00 01 0002 00000003 00000000
        send_data(3, b"ko")
        close_write(3, 0.0)
        < 00 00 0000 00000003 00000002 6b6f | 00 01 0004 00000003 00000000
        ! [StreamFinished(3)]
        """,
    ),
    "SYN and FIN on a window update": Talk(
        S,
        """
        > 00 01 0005 00000001 00000000
        accept(1, 0x40000)
        ! [StreamOpened(1), StreamEnded(1)]
        """,
    ),
    "ACK and FIN in one frame": Talk(
        C,
        """
        open_stream()
        < 00 01 0001 00000001 00000000
        > 00 01 0006 00000001 00000000
        ! [StreamEnded(1)]
        """,
    ),
    "FIN without ACK is a sign of acceptance": Talk(
        C,
        """
        open_stream()
        < 00 01 0001 00000001 00000000
        > 00 01 0004 00000001 00000000
        > 00 01 0008 00000001 00000000
        ! [StreamEnded(1), WriteStopped(1, 0), StreamFinished(1)]
        """,
    ),
    "ACK with data and a delta before it": Talk(
        C,
        """
        open_stream()
        < 00 01 0001 00000001 00000000
        > 00 01 0002 00000001 00000100 | 00 00 0002 00000001 00000001 78
        ! [DataReceived(1, b"x")]
        """,
    ),
    "a refused opening": Talk(
        C,
        """
        open_stream()
        < 00 01 0001 00000001 00000000
        > 00 01 0008 00000001 00000000
        ! [StreamRejected(1, 0, "the peer refused it"), StreamFinished(1)]
        """,
    ),
    "a refused stream of the peer": Talk(
        S,
        """
        > 00 01 0001 00000001 00000000
        refuse(1, 0)
        ! [StreamOpened(1), StreamFinished(1)]
        < 00 01 0008 00000001 00000000
        > 00 00 0000 00000001 00000003 616263 | 00 01 0004 00000001 00000000
        ! []
        """,
    ),
    "a reset with a code, sent": Talk(
        S,
        """
        > 00 01 0001 00000001 00000000
        accept(1, 0x40000)
        < 00 01 0002 00000001 00000000
        reset_write(1, 0x1001)
        reset_read(1, 0x1001)
        < 00 01 0008 00000001 00001001
        """,
    ),
    "a reset with a code, received": Talk(
        S,
        """
        > 00 01 0001 00000001 00000000
        accept(1, 0x40000)
        > 00 01 0008 00000001 00000009
        ! [StreamOpened(1), StreamAborted(1, 9, False, ""), WriteStopped(1, 9), StreamFinished(1)]
        """,
    ),
    "a reset on a data frame": Talk(
        S,
        """
        > 00 01 0001 00000001 00000000
        accept(1, 0x40000)
        > 00 00 0008 00000001 00000001 78
        ! [StreamOpened(1), StreamAborted(1, 0, False, ""), WriteStopped(1, 0), StreamFinished(1)]
        """,
    ),
    "a reset may use what looks like too much credit": Talk(
        C,
        """
        open_stream()
        > 00 01 0002 00000001 00000000 | 00 01 0008 00000001 ffffffff
        ! [StreamAborted(1, 0xffffffff, False, ""), WriteStopped(1, 0xffffffff), StreamFinished(1)]
        """,
    ),
    "credit is a delta": Talk(
        C,
        """
        open_stream()
        < 00 01 0001 00000001 00000000
        send_data(1, b"0123456789")
        < 00 00 0000 00000001 0000000a 30313233343536373839
        > 00 01 0000 00000001 0000000a
        credit(1) == 0x40000
        """,
    ),
    "the first frame ends with the window of 256 KiB": Talk(
        S,
        """
        > 00 00 0001 00000001 00040001
        """,
        error="262145 bytes with 262144 bytes of credit on stream 1",
    ),
    "a ping is answered": Talk(
        C,
        """
        > 00 02 0001 00000000 0000002a
        < 00 02 0002 00000000 0000002a
        ! []
        """,
    ),
    "a ping is sent and answered": Talk(
        S,
        """
        ping(0x2b)
        < 00 02 0001 00000000 0000002b
        > 00 02 0002 00000000 0000002b
        ! [PongReceived(None, 0x2b)]
        """,
    ),
    "a ping between the head and the body cannot be": Talk(
        S,
        """
        > 00 00 0001 00000001 0000000c 00 02 0001 00000000 0000002a
        accept(1, 0x40000)
        ! [StreamOpened(1), DataReceived(1, bytes.fromhex("00 02 0001 00000000 0000002a"))]
        < 00 01 0002 00000001 00000000
        """,
    ),
    "this side goes away": Talk(
        S,
        """
        go_away(0)
        < 00 03 0000 00000000 00000000
        > 00 01 0001 00000001 00000000
        < 00 01 0008 00000001 00000000
        ! []
        """,
    ),
    "the peer goes away": Talk(
        C,
        """
        open_stream()
        > 00 03 0000 00000000 00000000 | 00 01 0002 00000001 00000000
        ! [GoAwayReceived(1, 0)]
        """,
    ),
    "the peer fails": Talk(
        C,
        "> 00 03 0000 00000000 00000002",
        error="the peer ended the connection with GO_AWAY code 2 (internal error)",
    ),
    "SYN twice": Talk(
        S,
        """
        > 00 01 0001 00000001 00000000 | 00 01 0001 00000001 00000000
        """,
        error="the peer opened stream 1, which is open",
    ),
    "SYN of an even id at a server": Talk(
        S,
        "> 00 01 0001 00000002 00000000",
        error="the peer opened stream 2, of the parity of this side",
    ),
    "a version that is not 0": Talk(
        C, "> 01 02 0001 00000000 00000000", error="frame of version 1, not 0"
    ),
}
