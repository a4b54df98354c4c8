"""Which events are memory records."""

from __future__ import annotations

import pytest

from relay.memory.systems import MEMORY_SYSTEMS
from tests import cast


@pytest.mark.parametrize(
    ("kind", "d"),
    [
        (30078, "nmem:session:x"),
        (30078, "snowclaw:config:global"),
        (30078, "snow:memory:tea"),
        (30078, "anamnesis:vouch:0"),
        (78, "nmem:obs:s:0"),
        (78, "anamnesis:memory:0"),
        (30090, "x"),
        (30096, "x"),
        (1988, "s"),
        (1989, "s"),
        (31988, "s"),
        (1080, ""),
    ],
)
def test_records_of_the_five_systems_are_memory(kind: int, d: str) -> None:
    assert MEMORY_SYSTEMS.is_memory(cast.robot.sign(kind, [["d", d]], "", 0))


@pytest.mark.parametrize(
    ("kind", "d"), [(30078, "my app"), (78, "my app"), (1, "nmem:session:x"), (30023, "snowclaw:")]
)
def test_other_app_data_is_not(kind: int, d: str) -> None:
    assert not MEMORY_SYSTEMS.is_memory(cast.robot.sign(kind, [["d", d]], "", 0))
