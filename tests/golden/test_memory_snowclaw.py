"""memory/snowclaw.json: records in both shapes, configuration, context, readers, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from policies import load
from relay.access.actors import Actors
from relay.access.visibility import Viewer, visibility_for
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups
from relay.lifecycle.rows import Stored
from relay.memory.check_options import CheckOptions
from relay.memory.draft import Draft
from relay.memory.snowclaw.agent_memory import agent_memory_draft, agent_memory_in
from relay.memory.snowclaw.checks import check
from relay.memory.snowclaw.collective import collective_draft, collective_in
from relay.memory.snowclaw.config import (
    DynamicConfig,
    GroupConfig,
    RespondMode,
    config_draft,
    config_in,
    config_of,
    respond_mode_in,
)
from relay.memory.snowclaw.context import Context, ContextAssembler, Part, Sender, header
from relay.memory.snowclaw.encryption import OwnKey, encrypted
from relay.memory.snowclaw.groups import GroupMemory
from relay.memory.snowclaw.history import HistoryMessage, RingBuffer
from relay.memory.snowclaw.key_filter import KeyFilter
from relay.memory.snowclaw.keys import Everywhere, OfGroup, OfUser, Scope
from relay.memory.snowclaw.records import GroupRecord, UserRecord, newest, record_in
from relay.memory.snowclaw.respond import Agent, should_respond
from relay.memory.systems import MEMORY_SYSTEMS
from relay.memory.unreadable import UnreadableRecord, next_created_at
from relay.nostr.event import event_from
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.keys import SecretKey
from tests.contract.writing import group_of
from tests.golden import document
from tests.unit.policies.facts import being

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event

VECTORS = document("memory/snowclaw.json")
KEYS = {name: SecretKey.parse(pair["nsec"]) for name, pair in VECTORS["keys"].items()}
EVENTS: Final[dict[str, Event]] = {k: event_from(v) for k, v in VECTORS["events"].items()}
NORMALISED = VECTORS["normalised"]
OWNER, AGENT, MEMBER = (KEYS[name].pubkey for name in ("owner", "agent", "member"))
SELF = OwnKey.of(KEYS["agent"])
CONTEXT = VECTORS["context"]


def as_json(value: object) -> object:
    """Tuples as the arrays that a vector has for them."""
    return [as_json(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", EVENTS)
def test_a_good_record_passes_the_check(name: str) -> None:
    assert check(EVENTS[name], CheckOptions()) is None


@pytest.mark.proves("S-07", "S-08")
@pytest.mark.parametrize("name", ["npub_doc", "npub_code"])
def test_both_shapes_of_a_user_are_read_into_one(name: str) -> None:
    record = record_in(EVENTS[name])
    assert isinstance(record, UserRecord)
    wanted = NORMALISED[name]
    assert {key: as_json(getattr(record.memory, key)) for key in wanted} == wanted


@pytest.mark.proves("S-09")
@pytest.mark.parametrize("name", ["group_doc", "group_code"])
def test_both_shapes_of_a_group_are_read_into_one(name: str) -> None:
    record = record_in(EVENTS[name])
    assert isinstance(record, GroupRecord)
    wanted = dict(NORMALISED[name])
    assert record.scope.id == wanted.pop("group_id")
    assert {key: as_json(getattr(record.memory, key)) for key in wanted} == wanted


@pytest.mark.proves("S-15")
@pytest.mark.parametrize("name", ["cfg_content", "cfg_tags", "cfg_both_differ", "cfg_npub"])
def test_configuration_is_read_from_tags_and_content(name: str) -> None:
    record = config_in(EVENTS[name])
    assert not isinstance(record, UnreadableRecord)
    assert {
        "scope": str(record.scope),
        "respond_mode": record.config.respond_mode,
        "context_history": record.config.context_history,
    } == NORMALISED[name]


@pytest.mark.proves("S-12", "S-13")
def test_encrypted_memory_opens_with_its_agents_key_alone() -> None:
    event = EVENTS["npub_16_encrypted"]
    record, plain = record_in(event, SELF), record_in(EVENTS["npub_doc"])
    assert isinstance(record, UserRecord)
    assert isinstance(plain, UserRecord)
    assert record.memory == plain.memory
    agent2 = KEYS["agent2"]
    for key in (None, OwnKey.of(agent2)):
        unread = record_in(event, key)
        assert isinstance(unread, UnreadableRecord)
        assert unread.is_locked
        assert event.content not in unread.why
    draft = Draft(30078, [["d", event.d]], EVENTS["npub_doc"].content, event.created_at)
    assert encrypted(draft, SELF, bytes([7]) * 32) == Draft(
        30078, event.tags, event.content, event.created_at
    )


@pytest.mark.proves("S-05")
def test_agent_memory_is_read_and_written_alike() -> None:
    event = EVENTS["category"]
    memory = agent_memory_in(event)
    assert not isinstance(memory, UnreadableRecord)
    assert (memory.category, memory.key, memory.session) == ("core", "user:k0:profile", "s-9")
    assert agent_memory_draft(memory, event.created_at) == Draft(
        30078, event.tags, event.content, event.created_at
    )


@pytest.mark.proves("S-27")
def test_collective_memory_is_read_and_written_alike() -> None:
    event = EVENTS["collective"]
    memory = collective_in(event)
    assert not isinstance(memory, UnreadableRecord)
    assert (memory.topic, memory.confidence) == ("rust/error-handling", 0.92)
    assert collective_draft(memory, event.created_at) == Draft(
        30078, event.tags, event.content, event.created_at
    )


@pytest.mark.proves("S-17")
@pytest.mark.parametrize("case", VECTORS["config_resolution"], ids=lambda case: str(case)[:60])
def test_the_nearest_scope_that_sets_a_value_has_it(case: dict[str, Any]) -> None:
    scopes: dict[str, Scope] = {
        "npub": OfUser(MEMBER),
        "group": OfGroup("techteam"),
        "global": Everywhere(),
    }
    config = DynamicConfig(frozenset({OWNER}), config_of(case["file"] or {}))
    for name, scope in scopes.items():
        if case[name] is not None:
            draft = config_draft(scope, config_of(case[name]), None, 1)
            config = config.after(KEYS["owner"].sign(*draft))
    found = config.effective("techteam", MEMBER)
    assert {"respond_mode": found.respond_mode, "context_history": found.context_history} == case[
        "effective"
    ]


@pytest.mark.proves("S-16")
@pytest.mark.parametrize(("written", "mode"), VECTORS["respond_mode_aliases"].items())
def test_modes_have_other_names(written: str, mode: str) -> None:
    assert respond_mode_in(written) == RespondMode(mode)


@pytest.mark.proves("S-35")
@pytest.mark.parametrize("case", VECTORS["respond"], ids=str)
def test_the_mode_says_who_is_answered(case: dict[str, Any]) -> None:
    author = KEYS["owner" if case["from_owner"] else "member"]
    tags = [["p", AGENT]] if case["mentioned"] else []
    agent = Agent(AGENT, ("Snowclaw",), frozenset({OWNER}))
    event = author.sign(9, tags, "hello", 1)
    answers = should_respond(event, RespondMode(case["mode"]), agent, frozenset())
    assert answers == bool(case["responds"])


@pytest.mark.proves("S-24")
@pytest.mark.parametrize("case", VECTORS["next_created_at"], ids=str)
def test_the_next_version_is_always_newer(case: dict[str, int]) -> None:
    assert next_created_at(case["now"], case["last"]) == case["result"]


@pytest.mark.proves("S-02")
def test_of_one_second_the_lowest_id_counts() -> None:
    case = VECTORS["same_second"]
    events = [event_from(row) for row in case["events_in_id_order"]]
    for order in (events, events[::-1]):
        found = newest(order)
        assert found is not None
        assert found.id == case["kept"]


@pytest.mark.proves("G-09")
@pytest.mark.parametrize("case", VECTORS["prefix_queries"], ids=lambda case: case["filter"]["#d"])
def test_a_d_that_ends_in_a_colon_is_a_prefix(case: dict[str, Any]) -> None:
    filter_ = filter_from(case["filter"], FilterTerms())
    latest = {event.d: name for name, event in EVENTS.items() if filter_.matches(event)}
    assert sorted(latest.values()) == sorted(case["returns"])


@pytest.mark.proves("S-36")
@pytest.mark.parametrize("case", VECTORS["keyfilter"]["cases"], ids=lambda case: case["input"][:20])
def test_keys_do_not_go_to_a_model(case: dict[str, Any]) -> None:
    key_filter = KeyFilter(frozenset(VECTORS["keyfilter"]["known_pubkeys"]))
    found = key_filter.filtered(case["input"])
    assert (found.text, list(found.flags)) == (case["output"], case["flags"])
    assert key_filter.nsec_redacted == case["flags"].count("nsec")
    assert key_filter.hex_flagged == case["flags"].count("hex64")


@pytest.mark.proves("S-34")
def test_a_ring_keeps_the_newest() -> None:
    case = VECTORS["ring_buffer"]
    ring = RingBuffer[str](case["capacity"])
    for item in case["push"]:
        ring.push(item)
    assert list(ring) == case["kept"]
    for capacity in (2, 0):
        ring.resize(capacity)
        assert list(ring) == case[f"after_resize_to_{capacity}"]


@pytest.mark.proves("S-38")
@pytest.mark.parametrize("case", VECTORS["headers"], ids=lambda case: case["text"])
def test_a_message_has_a_header(case: dict[str, Any]) -> None:
    group, sender, kind, event_id, is_owner = case["args"]
    message = HistoryMessage(sender, "", "", 0, event_id, is_owner, kind)
    assert header(group, message) == case["text"]


def assembled(budget: int) -> Context:
    group, sender = CONTEXT["group"], Sender(**CONTEXT["sender"])
    decisions = tuple((text, at) for text, at in group["decisions"])
    return ContextAssembler(CONTEXT["group_id"]).assemble(
        system=CONTEXT["system"],
        sender=sender,
        current=HistoryMessage(npub=sender.npub, timestamp=0, **CONTEXT["current"]),
        history=[HistoryMessage(**message) for message in CONTEXT["history"]],
        memory=GroupMemory(group["purpose"], themes=tuple(group["themes"]), decisions=decisions),
        budget=budget,
    )


@pytest.mark.proves("S-37", "S-39", "S-40")
@pytest.mark.parametrize("case", CONTEXT["cases"], ids=lambda case: f"{case['budget']} tokens")
def test_a_context_keeps_to_its_budget(case: dict[str, Any]) -> None:
    context = assembled(case["budget"])
    assert context.text == case["text"]
    assert context.dropped == case["dropped"]
    assert context.over_budget == case["over_budget"]
    assert context.tokens_used == case["tokens_used"]
    for part in Part:
        trimmed = [piece for piece in context.pieces if piece.part is part and not piece.is_kept]
        assert len(trimmed) == case["dropped"][part]


# -- as the relay has it -----------------------------------------------------------------------

STANDING = {
    OWNER: being(Who.OWNER, Who.KNOWN),
    AGENT: being(Who.AGENT, Who.KNOWN),
    MEMBER: being(Who.MEMBER, Who.KNOWN),
}


@pytest.mark.proves("G-04", "S-01", "S-03", "S-04", "S-14", "S-16", "S-21", "S-22")
@pytest.mark.parametrize("case", VECTORS["bad"], ids=lambda case: case["name"])
def test_a_bad_record_is_refused_with_its_text(tmp_path: Path, case: dict[str, Any]) -> None:
    event = event_from(case["event"])
    verdict = load(tmp_path, MEMORY_SYSTEMS).refusal(event, STANDING[event.pubkey])
    assert verdict is not None
    assert f"{verdict.prefix}: {verdict.text}" == case["message"]


@pytest.mark.parametrize("name", EVENTS)
def test_a_good_record_is_taken(tmp_path: Path, name: str) -> None:
    event = EVENTS[name]
    assert load(tmp_path, MEMORY_SYSTEMS).refusal(event, STANDING[event.pubkey]) is None


def private(name: str, *members: str) -> Group:
    users = {KEYS["agent"].pubkey: ("agent",), KEYS["agent2"].pubkey: ()}
    return Group(name, flags=frozenset({Flag.PRIVATE})).with_users(
        {**users, **dict.fromkeys(members, ())}
    )


INSIDER = SecretKey(b"\1" * 32).pubkey
"""A member of inner-circle."""
READERS = {
    "member of inner-circle": INSIDER,
    "member of techteam only": MEMBER,
    "member of techteam": MEMBER,
    "member": MEMBER,
    "any authenticated agent or member": MEMBER,
    "agent": AGENT,
    "author": AGENT,
    "agent2": KEYS["agent2"].pubkey,
    "other agent": KEYS["agent2"].pubkey,
    "owner": OWNER,
    "outsider": KEYS["outsider"].pubkey,
    "anonymous": None,
}


@pytest.mark.proves("S-14", "S-21", "S-26", "S-27")
@pytest.mark.parametrize("case", VECTORS["acl"], ids=lambda case: case["event"])
def test_a_record_is_read_by_whom_it_is_for(tmp_path: Path, case: dict[str, Any]) -> None:
    groups = Groups()
    for group in (private("inner-circle", INSIDER), private("techteam", MEMBER), private("tie")):
        groups = groups.with_group(group)
    actors = Actors(frozenset({OWNER}), frozenset({AGENT, KEYS["agent2"].pubkey}), relay=OWNER)
    event = EVENTS[case["event"].partition(" ")[0].rstrip(",")]
    row = Stored(1, event, group_of(event))
    rules, everything = load(tmp_path, MEMORY_SYSTEMS).read_rules, filter_from({}, FilterTerms())
    for name, reads in case["readers"].items():
        pubkey = READERS[name]
        viewer = Viewer() if pubkey is None else Viewer(frozenset({pubkey}))
        seen = visibility_for(viewer, rules, actors, groups)
        assert seen.may_read(row, everything) == reads, name


def test_no_configuration_is_set_where_none_was_written() -> None:
    assert DynamicConfig(frozenset({OWNER})).at(Everywhere()) is None
    assert config_of({}) == GroupConfig()
