"""All systems have the same interface: records that are accepted can be decoded."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relay.memory.check_options import CheckOptions
from relay.memory.systems import MEMORY_SYSTEMS
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.event import event_from
from tests.cast import robot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relay.nostr.event import Event

GOLDEN = Path(__file__).parents[2] / "golden" / "memory"
SAMPLES = {
    "aman": robot.sign(
        30093,
        [["d", "k:preference"], ["k", "aman_preference"], ["hk", "k"], ["v", "1"], ["ts", "7"]],
        '{"history_key":"k","preference":"tea","updated_at":7}',
        7,
    ),
    "transcripts": robot.sign(31988, [["d", "session"], ["title", "A talk"]], "", 7),
    "snowclaw": robot.sign(
        30078, [["d", "snowclaw:memory:group:tea"], ["h", "tea"]], '{"purpose":"tea"}', 7
    ),
    "nmem": robot.sign(
        30078, [["d", f"nmem:pin:{'a' * 64}"], ["e", "a" * 64]], '{"pinned":true,"at":7}', 7
    ),
    "anamnesis": robot.sign(
        30078, [["d", f"anamnesis:meta:{'a' * 64}"], ["x", "a" * 64]], '{"tags":["tea"]}', 7
    ),
}
LATE = CheckOptions(latest=2_000_000_000)


@pytest.mark.proves("G-32")
@pytest.mark.parametrize("system", MEMORY_SYSTEMS.by_name)
def test_each_system_checks_and_reads_its_records(system: str) -> None:
    checks = import_module(f"relay.memory.{system}.checks")
    records = import_module(f"relay.memory.{system}.records")
    sample = SAMPLES[system]
    assert checks.check(sample, LATE) is None
    assert not isinstance(records.record_in(sample), UnreadableRecord)
    stranger = robot.sign(1, [], "a note", 7)
    assert isinstance(records.record_in(stranger), UnreadableRecord)


@pytest.mark.proves("G-32")
@pytest.mark.parametrize("system", MEMORY_SYSTEMS.by_name)
def test_reading_reports_what_it_cannot_read_whatever_another_relay_let_in(system: str) -> None:
    records = import_module(f"relay.memory.{system}.records")
    for event in golden_events():  # those that a relay refuses among them
        assert records.record_in(event) is not None


def golden_events() -> Iterator[Event]:
    for path in sorted(GOLDEN.glob("*.json")):
        yield from _events_in(json.loads(path.read_text("utf-8")))


def _events_in(value: Any) -> Iterator[Event]:
    if isinstance(value, dict):
        if value.keys() >= {"id", "pubkey", "sig", "tags", "content", "kind"}:
            yield event_from(value)
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _events_in(item)
