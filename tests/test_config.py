"""A Config is frozen and refuses limits that make no sense."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from wsmux.config import (
    LARGEST_RESUME_BUFFER,
    LEAST_RESUME_BUFFER,
    LONGEST_WORKERS,
    MAX_GRACE,
    MAX_HEAD,
    MAX_WINDOW,
    SMALLEST_WINDOW,
    Config,
    Recording,
    Resume,
    Unchosen,
    UserLimits,
)

from .helpers.tables import each_case

NO_LIMITS = ("recording", "trusted_proxies")
LIMITS = [field.name for field in fields(Config) if field.name not in NO_LIMITS]
OPTIONAL = [
    "half_open_timeout",
    "idle_timeout",
    "max_connections_per_address",
    "max_handshake_buffer",
    "max_handshakes_per_address",
    "max_window_bytes",
    "message_timeout",
    "open_timeout",
    "ping_interval",
    "ping_timeout",
    "stall_timeout",
    "stream_timeout",
    "tcp_user_timeout",
]
every_field = pytest.mark.parametrize("name", LIMITS)


def config(**limits: Any) -> Config:
    return Config(**limits)


def test_defaults_pass_their_own_checks() -> None:
    assert Config() == Config()


def test_published_defaults_stand() -> None:
    assert asdict(Config()) == {
        "receive_window": 262_144,
        "max_frame_size": 65_536,
        "max_message_size": 1_048_576,
        "max_fragments": 1024,
        "max_streams": 1024,
        "max_unaccepted": 256,
        "max_pending_opens": 256,
        "max_cancelled": 1024,
        "max_send_queue": 262_144,
        "max_control_frames": 1000,
        "max_control_bytes": 262_144,
        "max_empty_frames": 128,
        "max_pings": 128,
        "max_updates_per_frame": 10,
        "max_resets": 1000,
        "reset_rate": 33.0,
        "max_connection_buffer": 16_777_216,
        "max_window_bytes": None,
        "max_process_buffer": 268_435_456,
        "ping_interval": 20.0,
        "ping_timeout": 20.0,
        "idle_timeout": None,
        "open_timeout": 10.0,
        "half_open_timeout": 300.0,
        "message_timeout": 30.0,
        "stall_timeout": 30.0,
        "tcp_user_timeout": 30.0,
        "handshake_timeout": 10.0,
        "max_handshake_size": 65_536,
        "max_handshake_buffer": 4_194_304,
        "max_handshakes_per_address": 128,
        "max_connections_per_address": 512,
        "trusted_proxies": (),
        "close_timeout": 10.0,
        "stream_timeout": None,
        "recording": None,
    }


def test_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().max_streams = 5  # type: ignore[misc]


def test_limits_are_given_by_name_only() -> None:
    with pytest.raises(TypeError):
        Config(1024)  # type: ignore[call-arg]


def test_config_can_be_shared_as_a_key() -> None:
    assert {Config(): 1}[Config()] == 1


@each_case
@every_field
def test_zero_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^Config.{name} must be above 0, not 0$"):
        config(**{name: 0})


@each_case
@pytest.mark.parametrize("name", [name for name in LIMITS if name != "max_message_size"])
def test_one_is_taken(name: str) -> None:
    assert getattr(config(**{name: 1}), name) == 1


@each_case
@every_field
def test_negative_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^Config.{name} must be above 0, not -1$"):
        config(**{name: -1})


@each_case
@pytest.mark.parametrize("name", OPTIONAL)
def test_none_lifts_the_limit(name: str) -> None:
    assert getattr(config(**{name: None}), name) is None


@each_case
@pytest.mark.parametrize("name", [name for name in LIMITS if name not in OPTIONAL])
def test_none_is_refused_where_a_limit_must_be(name: str) -> None:
    with pytest.raises(ValueError, match=f"^Config.{name} cannot be None$"):
        config(**{name: None})


def test_window_of_32_bits_is_taken() -> None:
    assert Config(receive_window=2**32 - 1).receive_window == MAX_WINDOW


def test_window_above_32_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="must fit 32 bits"):
        Config(receive_window=2**32)


def test_frame_and_head_may_just_fit_a_message() -> None:
    limits = Config(max_frame_size=1000, max_message_size=1000 + MAX_HEAD)
    assert limits.max_message_size == 1016


def test_frame_that_no_message_can_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="must exceed max_frame_size by 16"):
        Config(max_frame_size=1000, max_message_size=1015)


def test_replace_checks_again() -> None:
    with pytest.raises(ValueError, match="above 0"):
        replace(Config(), max_streams=-1)


def test_smallest_windows_of_all_streams_fit_the_connection_buffer() -> None:
    assert SMALLEST_WINDOW * Config().max_streams <= Config().max_connection_buffer


def test_pending_opens_do_not_overrun_an_equal_accept_queue() -> None:
    assert Config().max_pending_opens <= Config().max_unaccepted


def test_count_that_is_not_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="max_streams must be a whole number, not 2.5"):
        Config(max_streams=2.5)  # type: ignore[arg-type]


def test_duration_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="ping_timeout must be above 0, not nan"):
        Config(ping_timeout=float("nan"))


@pytest.mark.parametrize("value", [0, 5, "here"])
def test_a_recording_is_nothing_else(value: object) -> None:
    with pytest.raises(ValueError, match=r"^Config.recording must be a Recording, not "):
        config(recording=value)


@each_case
@pytest.mark.parametrize("name", ["frames", "payload", "files"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many"])
def test_the_bounds_of_a_recording_are_whole_numbers_above_0(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^Recording.{name} must be a whole number above 0"):
        Recording(**{name: value})  # type: ignore[arg-type]


def test_a_recording_goes_to_a_directory_or_what_can_be_called() -> None:
    with pytest.raises(ValueError, match=r"^Recording.to must be a directory or callable, not 5"):
        Recording(to=5)  # type: ignore[arg-type]


def test_a_recording_that_says_how_is_taken() -> None:
    recording = Recording(frames=1, payload=1, files=1, to="here")
    assert config(recording=recording).recording is recording


def test_trusted_proxies_of_an_iterator_are_kept() -> None:
    made = config(trusted_proxies=iter(["10.0.0.0/8", "2001:db8::/32", "192.0.2.7", "unix"]))
    assert made.trusted_proxies == ("10.0.0.0/8", "2001:db8::/32", "192.0.2.7", "unix")
    assert replace(made, max_streams=5).trusted_proxies == made.trusted_proxies
    assert {made: 1}[made] == 1


@pytest.mark.parametrize("text", ["", "proxy.example", "10.0.0.1/8", "10.0.0.0/33", "*"])
def test_a_trusted_proxy_is_a_network(text: str) -> None:
    with pytest.raises(ValueError, match=r"^Config.trusted_proxies: a proxy is named by an IP net"):
        config(trusted_proxies=[text])


def test_a_trusted_proxy_of_ipv4_is_written_as_such() -> None:
    with pytest.raises(ValueError, match="as IPv4$"):
        config(trusted_proxies=["::ffff:10.0.0.0/104"])


@pytest.mark.parametrize("name", ["max_handshakes_per_address", "max_connections_per_address"])
@pytest.mark.parametrize("value", [1.5, float("inf")])
def test_a_count_that_may_be_none_is_whole_all_the_same(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^Config.{name} must be a whole number"):
        config(**{name: value})


@pytest.mark.parametrize(("taken", "within"), [(1, 1), (2, 1), (3, 1), (20, 10), (99, 32)])
def test_a_default_nobody_chose_is_half_of_what_is_accepted_at_most(
    taken: int, within: int
) -> None:
    assert Unchosen(32).within(taken) == within


# Resume


def test_published_defaults_of_resume_stand() -> None:
    assert asdict(Resume()) == {
        "grace": 60.0,
        "buffer": 4_194_304,
        "max_detached": 1000,
        "workers": None,
    }


def test_resume_is_frozen_given_by_name_and_can_be_a_key() -> None:
    with pytest.raises(FrozenInstanceError):
        Resume().grace = 5.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Resume(5.0)  # type: ignore[call-arg]
    assert {Resume(): 1}[Resume()] == 1


@pytest.mark.parametrize("grace", [0.001, 1, 60.0, MAX_GRACE])
def test_a_grace_is_of_up_to_a_month(grace: float) -> None:
    assert Resume(grace=grace).grace == grace
    assert MAX_GRACE * 1000 < 2**32  # the milliseconds of WELCOME


@pytest.mark.parametrize("grace", [0, -1, MAX_GRACE + 1, float("inf"), float("nan"), None, "60"])
def test_any_other_grace_is_refused(grace: Any) -> None:
    with pytest.raises(ValueError, match=r"^Resume.grace must be above 0 s and at most 2592000 s"):
        Resume(grace=grace)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("buffer", LEAST_RESUME_BUFFER, LARGEST_RESUME_BUFFER),
        ("max_detached", 1, 2**31),
    ],
)
def test_a_bound_of_resume_is_a_whole_number_in_its_range(name: str, least: int, most: int) -> None:
    for good in (least, most):
        assert getattr(Resume(**{name: good}), name) == good
    said = f"^Resume.{name} must be a whole number from {least} to {most}, not "
    values: tuple[Any, ...] = (least - 1, most + 1, 0, -1, float(least), True, None, "many")
    for value in values:
        with pytest.raises(ValueError, match=said):
            Resume(**{name: value})


@pytest.mark.parametrize("workers", ["/run/app", Path("/run/app"), "x" * LONGEST_WORKERS])
def test_workers_share_a_directory(workers: Any) -> None:
    assert Resume(workers=workers).workers == workers


@pytest.mark.parametrize("workers", [4, True, b"/run/app", ""])
def test_anything_else_is_no_directory_of_workers(workers: Any) -> None:
    with pytest.raises(ValueError, match=r"^Resume\.workers must be a directory, such as "):
        Resume(workers=workers)


def test_a_directory_of_workers_has_a_short_name() -> None:
    with pytest.raises(ValueError, match=r"^Resume\.workers must be a path of at most 80 bytes"):
        Resume(workers="ü" * 41)


def test_the_largest_buffer_fits_the_greeting() -> None:
    assert LARGEST_RESUME_BUFFER < 2**32


def test_resume_checks_again_when_it_is_replaced() -> None:
    with pytest.raises(ValueError, match="Resume.grace"):
        replace(Resume(), grace=-1)


# UserLimits


def test_published_defaults_of_user_limits_stand() -> None:
    names = ("connections", "connects_per_minute", "streams_per_minute")
    others = {"max_users": 10_000, "redis": None, "namespace": "default"}
    assert asdict(UserLimits()) == {**dict.fromkeys(names), **others}


@pytest.mark.parametrize("url", ["redis://:secret@host/0", "rediss://host", "unix:///run/redis"])
def test_limits_of_users_do_not_show_the_url_of_their_redis(url: str) -> None:
    limits = UserLimits(redis=url)
    assert limits.redis == url
    assert "redis" not in repr(limits)


@pytest.mark.parametrize("url", ["", "http://:secret@host", b"redis://host", 6379])
def test_what_is_no_url_of_a_redis_is_refused_and_not_shown(url: Any) -> None:
    with pytest.raises(ValueError, match=r"^UserLimits.redis must be a redis://, ") as caught:
        UserLimits(redis=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("namespace", ["", "x" * 101, None, b"x"])
def test_a_namespace_is_a_short_text(namespace: Any) -> None:
    assert UserLimits(namespace="x" * 100).namespace
    with pytest.raises(ValueError, match=r"^UserLimits.namespace must be a text of 1 to 100 char"):
        UserLimits(namespace=namespace)


@pytest.mark.parametrize("name", ["connections", "connects_per_minute", "max_users"])
def test_a_limit_of_users_is_a_whole_number(name: str) -> None:
    assert getattr(UserLimits(**{name: 1}), name) == 1
    values: tuple[Any, ...] = (0, -1, 1.0, True, "many")
    for value in values if name != "max_users" else (*values, None):
        with pytest.raises(ValueError, match=f"^UserLimits.{name} must be a whole number above 0"):
            UserLimits(**{name: value})
