"""An error that came from elsewhere, while a call waited, is an interrupt of it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import wsmux
from wsmux.runtime.interrupts import is_interrupt

NO_TIME = 0.0


def below(error: BaseException, name: str) -> BaseException:
    """Return an error as a frame of that name sees it, where a call is interrupted."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_name != name:
        trace = trace.tb_next
    return error.with_traceback(trace)


def test_an_error_of_our_own_is_no_interrupt() -> None:
    ours, theirs = wsmux.pair()
    with ours, theirs, pytest.raises(ValueError, match="a reset code is") as error:
        ours.open_stream().reset(1)
    assert not is_interrupt(below(error.value, "reset"))


def test_an_error_of_our_own_that_a_signal_handler_met_is_an_interrupt() -> None:
    """Its innermost frame is ours, and the handler's stands between that and the call."""
    ours, theirs = wsmux.pair()

    def handler(signum: int, frame: FrameType | None) -> None:
        with ours.open_stream() as other:
            other.timeout = NO_TIME
            other.read(1)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with ours, theirs, ours.open_stream() as stream:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(TimeoutError) as error:
                stream.read(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert is_interrupt(below(error.value, "read"))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError, LookupError])
def test_what_is_raised_elsewhere_is_an_interrupt(kind: type[BaseException]) -> None:
    with pytest.raises(kind) as error:
        raise kind
    assert is_interrupt(error.value)


@pytest.mark.parametrize(
    "place", ["wsmux_extra/handlers.py", "wsmux.py", "other/wsmux/handlers.py"]
)
def test_what_a_handler_beside_the_package_raises_is_an_interrupt(place: str) -> None:
    path = Path(wsmux.__file__).parent.parent / place
    handler: dict[str, Callable[[], None]] = {}
    text = "def handle():\n    raise TimeoutError"
    exec(compile(text, path, "exec"), handler)  # as if it were imported from there
    with pytest.raises(TimeoutError) as error:
        handler["handle"]()
    assert is_interrupt(error.value)
