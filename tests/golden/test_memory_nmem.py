"""memory/nmem.json: nmem's records, what is captured, what is kept, found, told and refused.

`schema` is the cache's, and played where the cache is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from policies import load
from relay.errors import Invalid
from relay.facts import Who
from relay.memory.check_options import CheckOptions
from relay.memory.nmem.capture import Ending, captured, hook_in
from relay.memory.nmem.checks import check
from relay.memory.nmem.context import context
from relay.memory.nmem.ranking import Row, blended, recent_score, safe_query, scores
from relay.memory.nmem.records import (
    Observation,
    Pin,
    Prompt,
    Record,
    Session,
    observation_draft,
    pin_draft,
    project_of,
    prompt_draft,
    record_in,
    session_draft,
)
from relay.memory.nmem.retention import DAYS
from relay.memory.nmem.summary import EMPTY_SESSION, summary_from
from relay.memory.nmem.tools import classify_tool
from relay.memory.secrets import SecretFilter, Sensitivity, entropy
from relay.memory.systems import MEMORY_SYSTEMS
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.event import event_from
from relay.nostr.keys import SecretKey
from tests.golden import document
from tests.unit.policies.facts import being

if TYPE_CHECKING:
    from pathlib import Path

    from relay.memory.draft import Draft
    from relay.nostr.event import Event

VECTORS = document("memory/nmem.json")
EVENTS = {name: event_from(fields) for name, fields in VECTORS["events"].items()}
KEYS = {name: SecretKey.parse(pair["nsec"]) for name, pair in VECTORS["keys"].items()}
NOW = VECTORS["now"]
DAY = 86_400
SECRETS = SecretFilter()


def record(event: Event) -> Record:
    found = record_in(event)
    assert not isinstance(found, UnreadableRecord), found.why
    return found


def draft(held: Record, project: str) -> Draft:
    match held:
        case Session():
            return session_draft(held)
        case Prompt():
            return prompt_draft(held)
        case Observation():
            return observation_draft(held, project)
        case Pin():
            return pin_draft(held)


# -- records --------------------------------------------------------------------------------------


@pytest.mark.proves("M-01", "M-02", "M-04", "M-05")
@pytest.mark.parametrize("name", EVENTS)
def test_a_record_read_and_written_is_the_same_event(name: str) -> None:
    event = EVENTS[name]
    assert check(event, CheckOptions()) is None
    again = draft(record(event), project_of(event) or "")
    assert (again.kind, again.created_at, again.tags) == (event.kind, event.created_at, event.tags)
    assert again.content == event.content
    assert KEYS["agent"].sign(*again).id == event.id


def test_what_happened_once_is_one_event_however_often_it_is_told() -> None:
    case = VECTORS["repeat"]
    first, again = event_from(case["event"]), event_from(case["again"])
    assert (first.id == again.id) is case["same_id"]
    assert draft(record(first), "rook") == draft(record(again), "rook")


@pytest.mark.proves("M-06")
def test_an_empty_session_has_its_own_summary() -> None:
    assert EMPTY_SESSION.fields() == VECTORS["sentinel_summary"]
    assert list(EMPTY_SESSION.fields()) == list(VECTORS["sentinel_summary"])


@pytest.mark.proves("M-05")
@pytest.mark.parametrize("case", VECTORS["string_or_vec"], ids=lambda case: str(case["input"]))
def test_a_list_of_a_summary_may_be_one_string(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(Invalid) as refused:
            summary_from(case["input"])
        assert refused.value.text == case["error"]
    else:
        assert summary_from(case["input"]).fields() == case["output"]


# -- captured -------------------------------------------------------------------------------------


@pytest.mark.proves("M-17")
@pytest.mark.parametrize(
    "case", VECTORS["classify"], ids=lambda case: f"{case['tool']} {case.get('command', '')}"
)
def test_a_call_of_a_tool_has_its_type(case: dict[str, Any]) -> None:
    assert classify_tool(case["tool"], {"command": case.get("command", "")}) == case["obs_type"]


def told(held: object) -> str:
    """As the vectors put it."""
    match held:
        case Session():
            return "session"
        case Observation():
            return f"observation {held.obs_type}"
        case Prompt():
            return f"prompt of {len(held.content)} characters"
        case _:
            assert isinstance(held, Ending)
            return (
                "session with ended_at and signature; with fewer than 3 observations also "
                "the sentinel summary"
            )


@pytest.mark.proves("M-14", "M-15", "M-16", "M-18")
@pytest.mark.parametrize(
    "case",
    VECTORS["hooks"],
    ids=lambda case: f"{case['stdin']['hook_event_name']} {case['writes']}",
)
def test_a_hook_records_what_it_tells(case: dict[str, Any]) -> None:
    records = captured(hook_in(json.dumps(case["stdin"])), NOW, "rook", SECRETS)
    assert [told(held) for held in records] == case["writes"]
    for field in ("metadata", "content", "file_path"):
        if field in case:
            assert getattr(records[0], field) == case[field]
            if field == "metadata":
                assert list(getattr(records[0], field)) == list(case[field])


# -- kept -----------------------------------------------------------------------------------------


@pytest.mark.proves("M-25")
def test_each_type_has_its_days() -> None:
    assert VECTORS["retention_days"] == DAYS


# -- secrets --------------------------------------------------------------------------------------


@pytest.mark.proves("M-30")
@pytest.mark.parametrize("case", VECTORS["filter"], ids=lambda case: case["input"])
def test_a_secret_is_taken_out(case: dict[str, Any]) -> None:
    assert SECRETS.filtered(case["input"]) == (case["output"], case["redacted"])


@pytest.mark.proves("M-30")
@pytest.mark.parametrize(
    "case", VECTORS["filter_sensitivity"], ids=lambda case: f"{case['sensitivity']} {case['input']}"
)
def test_how_much_chance_makes_a_secret_can_be_set(case: dict[str, Any]) -> None:
    word = {"default": "normal"}.get(case["sensitivity"], case["sensitivity"])
    assert SecretFilter(Sensitivity(word)).filtered(case["input"]).text == case["output"]


@pytest.mark.proves("M-30")
@pytest.mark.parametrize("case", VECTORS["entropy"], ids=lambda case: case["s"] or "nothing")
def test_entropy_is_shannons(case: dict[str, Any]) -> None:
    assert entropy(case["s"].encode()) == pytest.approx(case["bits"], abs=5e-7)


# -- found and told -------------------------------------------------------------------------------


@pytest.mark.proves("M-26")
@pytest.mark.parametrize("case", VECTORS["fts_sanitise"], ids=lambda case: case["input"] or "empty")
def test_a_query_is_made_safe(case: dict[str, Any]) -> None:
    assert safe_query(case["input"]) == case["output"]


@pytest.mark.proves("M-26")
def test_match_age_and_type_are_blended() -> None:
    cases = VECTORS["blended"]["rows"]
    found = [
        (
            Row(case["id"], NOW - case["age_days"] * DAY, case["obs_type"], "x", "p"),
            case["raw_rank"],
        )
        for case in cases
    ]
    for case, score in zip(cases, scores(found, NOW), strict=True):
        assert score == pytest.approx((case["bm25"], case["recency"], case["type"]), abs=5e-7)
        assert score.blended == pytest.approx(case["score"], abs=5e-7)
    assert [row.id for row in blended(found, NOW)] == VECTORS["blended"]["order"]


@pytest.mark.proves("M-27")
@pytest.mark.parametrize("case", VECTORS["recent_context"], ids=str)
def test_what_is_recent_is_worth_more_in_its_own_project(case: dict[str, Any]) -> None:
    project = "rook" if case["project_match"] else "other"
    row = Row(1, NOW - case["age_days"] * DAY, case["obs_type"], "x", project)
    assert recent_score(row, NOW, "rook") == pytest.approx(case["score_with_project"], abs=5e-7)
    assert recent_score(row, NOW) == pytest.approx(case["score_without_project"], abs=5e-7)


@pytest.mark.proves("M-28")
def test_an_agent_is_told_what_the_events_say() -> None:
    case = VECTORS["context"]
    closed, pin = record(EVENTS["session_closed"]), record(EVENTS["pin"])
    assert isinstance(closed, Session)
    assert isinstance(pin, Pin)
    rows = []
    for number, name in enumerate(("file_read", "git_commit"), 1):
        seen = record(EVENTS[name])
        assert isinstance(seen, Observation)
        is_pinned = pin.is_pinned and pin.event_id == EVENTS[name].id
        rows.append(
            Row(
                number,
                seen.timestamp,
                seen.obs_type,
                seen.content,
                project_of(EVENTS[name]) or "",
                seen.file_path,
                is_pinned,
            )
        )
    assert context(case["project"], [closed], rows, case["now"]) == case["text"]


# -- refused --------------------------------------------------------------------------------------

WHO = {
    KEYS["owner"].pubkey: being(Who.OWNER, Who.KNOWN),
    KEYS["agent"].pubkey: being(Who.AGENT, Who.KNOWN),
    KEYS["agent2"].pubkey: being(Who.AGENT, Who.KNOWN),
    KEYS["member"].pubkey: being(Who.MEMBER, Who.KNOWN),
}
STORED = (EVENTS["file_read"],)
"""What the pins among the bad records name."""


@pytest.mark.proves("M-02", "M-05", "G-03", "G-04")
@pytest.mark.parametrize("case", VECTORS["bad"], ids=lambda case: case["name"])
def test_a_bad_record_is_refused_with_its_text(case: dict[str, Any], tmp_path: Path) -> None:
    event = event_from(case["event"])
    verdict = load(tmp_path, MEMORY_SYSTEMS).refusal(
        event, replace(WHO[event.pubkey], records=STORED)
    )
    assert verdict is not None
    assert f"{verdict.prefix}: {verdict.text}" == case["message"]
    if verdict.prefix == "invalid":
        found = record_in(event)
        assert isinstance(found, UnreadableRecord)
        assert found.why == verdict.text
