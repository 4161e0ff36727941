"""A conversation held now with each published peer has the listed differences only."""

from __future__ import annotations

import pytest

from wsmux.protocols.base import Role

from ..helpers.certificates import Certificates
from ..helpers.interop.installs import Unavailable
from ..helpers.published.differences import fewest
from ..helpers.published.record import hold, start
from ..helpers.published.replay import PEERS

pytestmark = [pytest.mark.interop, pytest.mark.hang_bound(700)]


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("name", PEERS)
def test_a_new_conversation_differs_as_the_recorded_ones(
    name: str, role: Role, certificates: Certificates
) -> None:
    try:
        process = start(name)
    except Unavailable as error:
        pytest.skip(f"no peer: {error}")
    with process:
        assert fewest(hold(name, process, role, f"{name} {role} now", certificates)) is not None
