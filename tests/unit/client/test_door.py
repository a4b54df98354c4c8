"""relay/client: the door of the package, whose names are imported when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import relay.client
import relay.client.nmem
from tests.harness.patience import PROGRAM_S


@pytest.mark.parametrize("door", [relay.client, relay.client.nmem], ids=lambda door: door.__name__)
def test_every_name_on_the_door_is_there_and_no_other(door: object) -> None:
    names = door.__all__  # type: ignore[attr-defined]
    assert {getattr(door, name).__name__ for name in names} >= set(names) - {"validate"}
    assert set(names) == set(door._HOME_OF)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'Nobody'"):
        door.Nobody  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.slow
def test_what_records_a_hook_imports_nothing_of_the_network() -> None:
    asked = "import relay.client.nmem.recording, sys; print('aiohttp' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=PROGRAM_S
    )
    assert done.stdout == "False\n"
