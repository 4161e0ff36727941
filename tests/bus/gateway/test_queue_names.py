"""A message chooses no name of Redis but a plain one that is nobody else's."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.gateway.queue_names import MAX_NAME, command_queue, reply_queue

from ...helpers.tables import each_case

STRANGE = [
    "",
    " ",
    "a b",
    "a\n",
    "a:b",
    "a*",
    "../a",
    "a/b",
    "a\\b",
    "{a}",
    "a\0",
    "é",
    "\u0430",
    "a" * (MAX_NAME + 1),
    "stream:1",
    "msgbus.calc:add",
]
SYSTEM_COMMANDS = [
    "system",
    "system.local",
    "system.reply",
    "system.",
    "system.local.working",
    "backlog",
    "backlog.u-1",
]
SYSTEM_QUEUES = [
    "msgbus",
    "msgbus.system",
    "msgbus.system.local",
    "msgbus.system.reply",
    "msgbus.system.local.working",
    "msgbus.backlog",
    "msgbus.backlog.u-1",
    "twin",
    "relay.federation.stream",
]


@each_case
@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_command_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a command must have 1 to 128 characters"):
        command_queue(name)


@each_case
@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_queue_for_answers_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match="the name of a queue for answers must have 1 to 128 characters"
    ):
        reply_queue(name)


@pytest.mark.parametrize("name", SYSTEM_COMMANDS)
def test_a_command_that_names_a_system_queue_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="would name a system queue"):
        command_queue(name)


@pytest.mark.parametrize("name", SYSTEM_QUEUES)
def test_a_system_queue_takes_no_answers(name: str) -> None:
    with pytest.raises(ValueError, match="is a system queue"):
        reply_queue(name)


@pytest.mark.parametrize("name", ["calc.add", "zos.system.version", "systems", "a", ".", "x" * 128])
def test_a_command_has_its_queue(name: str) -> None:
    assert command_queue(name) == f"msgbus.{name}"


@pytest.mark.parametrize(
    "name", ["5f0e1a9c-3f0a-4a47", "msgbus.reply.1", "msgbus.systems", "twins", "msgbusx"]
)
def test_a_plain_name_may_take_answers(name: str) -> None:
    assert reply_queue(name) == name


names = st.text() | st.from_regex(r"(msgbus\.)?(system|backlog|a)?[.a-z:]{0,8}", fullmatch=True)


@given(names)
def test_no_text_leads_to_a_queue_of_the_system(text: str) -> None:
    taken = []
    with suppress(ValueError):
        taken.append(command_queue(text))
    with suppress(ValueError):
        taken.append(reply_queue(text))
    assert not [name for name in taken if ":" in name or name in SYSTEM_QUEUES]
    assert not [name for name in taken if name.startswith(("msgbus.system.", "msgbus.backlog."))]
