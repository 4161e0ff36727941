"""A budget lets pass what it says, and a watch tells when nothing has moved for too long."""

from __future__ import annotations

import pytest

from wsmux.config import Config
from wsmux.exceptions import FrameError
from wsmux.protocols.abuse_limits import AbuseLimits, StallTimer, TokenBucket
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.yamux import YamuxProtocol

from ..helpers.machine_pairs import ACK, ERROR, GO_AWAY, READ, message, native, uint32


def spend(budget: TokenBucket, now: float, earned: int = 0) -> int:
    """Return how many a budget lets pass at one moment."""
    count = 0
    while budget.charge(now, earned):
        count += 1
    return count


class TestBudget:
    def test_it_is_full_whenever_it_begins(self) -> None:
        budget = TokenBucket(5, rate=1.0)
        assert [spend(budget, now) for now in (0.5, 1.5)] == [5, 1]

    def test_its_size_passes_at_once(self) -> None:
        assert spend(TokenBucket(5), 0.0) == 5

    def test_time_refills_it(self) -> None:
        budget = TokenBucket(10, rate=2.0)
        assert [spend(budget, now) for now in (0.0, 3.0, 3.4, 3.5)] == [10, 6, 0, 1]

    def test_no_more_than_its_size_is_saved(self) -> None:
        budget = TokenBucket(10, rate=2.0)
        assert [spend(budget, now) for now in (0.0, 1e9)] == [10, 10]

    def test_a_clock_that_is_set_first_gives_nothing_extra(self) -> None:
        assert spend(TokenBucket(3, rate=1.0), 1e9) == 3

    def test_a_clock_that_goes_back_takes_nothing(self) -> None:
        budget = TokenBucket(3, rate=1.0)
        assert [budget.charge(now) for now in (9.0, 8.0, 7.0, 6.0)] == [True, True, True, False]

    def test_what_is_earned_goes_first_and_counts_once(self) -> None:
        budget = TokenBucket(2)
        assert [spend(budget, 0.0, earned) for earned in (3, 3, 7)] == [5, 0, 4]

    def test_budgets_that_stand_alike_are_equal(self) -> None:
        left, right = TokenBucket(2), TokenBucket(2)
        assert left == right
        left.charge(0.0)
        assert left != right
        assert left != 2


def flooded(what: str, floods: AbuseLimits, *arguments: float) -> int:
    """Return how many frames of a kind are borne, and check what ends them."""
    borne = 0

    def charge() -> None:
        nonlocal borne
        while borne < 100_000:
            getattr(floods, what)(*arguments)
            borne += 1

    with pytest.raises(FrameError, match="^too many .*: Config.max_") as caught:
        charge()
    assert caught.value.code == 1008
    return borne


class TestFloods:
    @pytest.mark.parametrize("what", ["empty", "late"])
    def test_128_frames_that_change_nothing_are_borne(self, what: str) -> None:
        assert flooded(what, AbuseLimits(Config()), 0.0) == 128

    @pytest.mark.parametrize("what", ["empty", "late"])
    def test_as_many_are_borne_again_after_five_seconds(self, what: str) -> None:
        floods = AbuseLimits(Config())
        assert [flooded(what, floods, now) for now in (0.0, 2.5, 7.5)] == [128, 64, 128]

    def test_each_stream_earns_four_late_frames(self) -> None:
        floods = AbuseLimits(Config())
        floods.opened()
        floods.opened()
        assert flooded("late", floods, 0.0) == 128 + 8

    def test_128_pings_are_borne(self) -> None:
        assert flooded("ping", AbuseLimits(Config()), 0.0, 0) == 128

    def test_time_earns_pings(self) -> None:
        floods = AbuseLimits(Config(max_pings=60))
        assert [flooded("ping", floods, now, 0) for now in (0.0, 1.0, 3.0)] == [60, 12, 24]

    def test_data_and_streams_earn_pings(self) -> None:
        floods = AbuseLimits(Config())
        floods.opened()
        assert flooded("ping", floods, 0.0, 10 * 1024 + 1023) == 128 + 10 + 1

    @pytest.mark.parametrize(("streams", "frames"), [(0, 0), (3, 0), (0, 4), (7, 100)])
    def test_updates_follow_the_formula_of_envoy(self, streams: int, frames: int) -> None:
        floods = AbuseLimits(Config())
        floods.streams = streams
        assert flooded("update", floods, 0.0, frames) == 5 + 2 * (streams + 10 * frames)

    def test_time_earns_no_updates(self) -> None:
        floods = AbuseLimits(Config())
        assert [flooded("update", floods, now, 0) for now in (0.0, 1e6)] == [5, 0]

    def test_1000_resets_are_borne_and_33_more_each_second(self) -> None:
        floods = AbuseLimits(Config())
        assert [flooded("reset", floods, now) for now in (0.0, 1.0, 3.0)] == [1000, 33, 66]

    def test_own_and_provoked_resets_share_one_budget(self) -> None:
        floods = AbuseLimits(Config())
        for _ in range(600):
            floods.solicited(0.0)
        assert flooded("reset", floods, 0.0) == 400

    def test_the_stream_after_the_last_provoked_reset_ends_the_connection(self) -> None:
        floods = AbuseLimits(Config(max_resets=2))
        for _ in range(2):
            floods.opened()
            floods.solicited(0.0)
        floods.opened()
        floods.solicited(0.0)
        assert floods.overdrawn
        with pytest.raises(FrameError, match="streams that had to be refused: Config.max_resets"):
            floods.opened()
        assert floods.streams == 3

    @pytest.mark.parametrize(
        ("what", "arguments", "text"),
        [
            ("empty", (), "frames that change nothing: Config.max_empty_frames is 7"),
            ("late", (), "frames for what has ended: Config.max_empty_frames is 7"),
            ("ping", (0,), "pings beyond what its data earns: Config.max_pings is 8"),
            ("update", (0,), "grants of credit for the data sent: Config.max_updates_per_frame"),
            ("reset", (), "resets: Config.max_resets is 9"),
        ],
    )
    def test_the_end_names_the_limit(self, what: str, arguments: tuple[int], text: str) -> None:
        floods = AbuseLimits(Config(max_empty_frames=7, max_pings=8, max_resets=9))

        def charge_ten() -> None:
            for _ in range(10):
                getattr(floods, what)(0.0, *arguments)

        with pytest.raises(FrameError, match=f"^too many {text}"):
            charge_ten()

    def test_those_that_stand_alike_are_equal(self) -> None:
        left, right = AbuseLimits(Config()), AbuseLimits(Config())
        assert left == right
        left.empty(0.0)
        assert left != right
        assert left != 2


class TestWatch:
    def test_what_stands_still_is_told_after_the_time(self) -> None:
        watch = StallTimer(8.0)
        assert [watch.look(5, now) for now in (100.0, 107.9, 108.0)] == [False, False, True]

    def test_what_moves_is_left_in_peace(self) -> None:
        watch = StallTimer(8.0)
        assert not any(watch.look(now, float(now)) for now in range(0, 100, 8))

    def test_each_move_starts_the_time_anew(self) -> None:
        watch = StallTimer(8.0)
        moves = [(1, 0.0), (2, 7.0), (2, 14.9), (2, 15.0)]
        assert [watch.look(*move) for move in moves] == [False, False, False, True]

    def test_it_tells_how_long_it_has_stood_still(self) -> None:
        watch = StallTimer(8.0)
        assert watch.still_for(100.0) is None
        for mark, now in ((1, 100.0), (1, 103.0)):
            watch.look(mark, now)
        assert watch.still_for(105.0) == 5.0
        watch.look(2, 106.0)
        assert watch.still_for(106.5) == 0.5
        watch.look(None, 107.0)
        assert watch.still_for(108.0) is None

    def test_what_is_over_is_not_watched(self) -> None:
        watch = StallTimer(8.0)
        watch.look(1, 0.0)
        assert (watch.look(None, 9.0), watch.next_look) == (False, None)
        assert (watch.look(1, 10.0), watch.next_look) == (False, 11.0)

    def test_it_looks_eight_times_and_at_the_end(self) -> None:
        watch = StallTimer(8.0)
        looks = []
        for now in (0.0, 1.0, 6.5, 7.5):
            watch.look(1, now)
            looks.append(watch.next_look)
        assert looks == [1.0, 2.0, 7.5, 8.0]

    def test_without_a_time_nothing_is_watched(self) -> None:
        watch = StallTimer(None)
        assert [watch.look(1, now) for now in (0.0, 1e9)] == [False, False]
        assert watch.next_look is None


@pytest.mark.parametrize("machine", [YamuxProtocol, BymuxProtocol])
def test_an_empty_message_of_the_carrier_is_charged(machine: type[MuxProtocol]) -> None:
    end = machine(Role.SERVER, Config(max_empty_frames=1))
    end.receive_data(b"")
    with pytest.raises(FrameError, match="that change nothing"):
        end.receive_data(b"")


def test_a_repeated_going_away_is_charged() -> None:
    end = native(Role.SERVER, max_empty_frames=1)
    wire = message(1, GO_AWAY, b"\0")
    end.receive_data(wire)
    end.receive_data(wire)
    with pytest.raises(FrameError, match="that change nothing"):
        end.receive_data(wire)


def test_a_stream_that_the_peer_resets_before_it_is_refused_is_charged_once() -> None:
    end = native(Role.SERVER, max_resets=1, reset_rate=0.001)
    end.receive_data(message(0, ACK, uint32(9)))
    end.receive_data(message(0, ERROR, READ + b"\5"))
    end.refuse(0, 3)
    end.refuse(0, 3)  # it is over
    assert not end.floods.overdrawn
