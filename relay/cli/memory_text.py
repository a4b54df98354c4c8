"""Text and JSON representations of memory records."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, assert_never

from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_in
from relay.memory.snowclaw.collective import CollectiveMemory, collective_in
from relay.memory.snowclaw.groups import GroupMemory
from relay.memory.snowclaw.keys import COLLECTIVE, MEMORY
from relay.memory.snowclaw.records import (
    GroupRecord,
    UserRecord,
    annotated_group,
    annotated_user,
    newest,
    record_in,
)
from relay.memory.snowclaw.users import UserMemory
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from relay.memory.snowclaw.encryption import OwnKey
    from relay.nostr.event import Event

    Known = UserMemory | GroupMemory | AgentMemory | CollectiveMemory | UnreadableRecord

_OWNER: Final = "owner: "


@dataclass(frozen=True, slots=True)
class Shown:
    """One record and its decoded content."""

    event: Event
    known: Known
    others_notes: Mapping[str, str] = field(default_factory=dict)
    """Owner's note, if its record has other readers than this one → its readers."""

    def as_json(self) -> dict[str, object]:
        about: dict[str, object] = {
            "d": self.event.d,
            "author": self.event.pubkey,
            "id": self.event.id,
            "created_at": self.event.created_at,
            "h": self.event.tag("h"),
            "read_by": readers_of(self.event),
        }
        if self.others_notes:
            about["notes_read_by"] = dict(self.others_notes)
        match self.known:
            case UnreadableRecord() as unread:
                return {**about, "unread": unread.why, "locked": unread.is_locked}
            case AgentMemory() as memory:
                return {
                    **about,
                    "category": memory.category,
                    "key": memory.key,
                    "session": memory.session,
                    "content": memory.text,
                }
            case CollectiveMemory() as memory:
                return {
                    **about,
                    "topic": memory.topic,
                    "tier": memory.tier,
                    "summary": memory.summary,
                    "detail": memory.detail,
                    "confidence": memory.confidence,
                }
            case memory:
                return {**about, **memory.as_fields()}


def shown_in(events: Iterable[Event], key: OwnKey, owners: frozenset[str]) -> list[Shown]:
    """The newest record of each author, the reader's own first, then by age; owners' notes are
    merged into each (S-22). `key`: of the reader."""
    of_author: dict[tuple[str, bool], list[Event]] = {}
    for event in events:
        # An agent's own memory and collective memory may have the same name.
        of_author.setdefault((event.pubkey, event.d.startswith((MEMORY, COLLECTIVE))), []).append(
            event
        )
    found = [
        (event, record_in(event, key) if event.d.startswith(MEMORY) else _other_in(event, key))
        for event in map(newest, of_author.values())
        if event is not None
    ]
    by_owners = [
        record
        for event, record in found
        if event.pubkey in owners and isinstance(record, (UserRecord, GroupRecord))
    ]
    merged = {record.event.id for record in by_owners}
    others = [(event, record) for event, record in found if event.id not in merged] or found
    others.sort(key=lambda pair: (pair[0].pubkey != key.pubkey, -pair[0].created_at, pair[0].id))
    of_users = [record.memory for record in by_owners if isinstance(record, UserRecord)]
    of_groups = [record.memory for record in by_owners if isinstance(record, GroupRecord)]
    shown = []
    for event, record in others:
        match record:
            case UserRecord() if event.id not in merged:
                of_user = annotated_user(record.memory, of_users)
                shown.append(Shown(event, of_user, _others_notes(event, record, by_owners)))
            case GroupRecord() if event.id not in merged:
                annotated = annotated_group(record.memory, of_groups)
                shown.append(Shown(event, annotated, _others_notes(event, record, by_owners)))
            case UserRecord() | GroupRecord():
                shown.append(Shown(event, record.memory))
            case known:
                shown.append(Shown(event, known))
    return shown


def _others_notes(
    event: Event, own: UserRecord | GroupRecord, by_owners: Iterable[UserRecord | GroupRecord]
) -> dict[str, str]:
    """As `Shown.others_notes`."""
    return {
        note: readers_of(record.event)
        for record in by_owners
        if record.event.tag("h") != event.tag("h")
        for note in record.memory.notes
        if note not in own.memory.owner_notes
    }


def _other_in(event: Event, key: OwnKey) -> AgentMemory | CollectiveMemory | UnreadableRecord:
    if event.d.startswith(COLLECTIVE):
        return collective_in(event, key)
    return agent_memory_in(event, key)


def lines_of(shown: Shown) -> list[tuple[str, str]]:
    """(label, text) per line; the label is empty for continuation lines."""
    event = shown.event
    lines = [("key", event.d), *_lines_in(shown.known, shown.others_notes)]
    lines.append(("read by", readers_of(event)))
    lines.append(("version", f"{event.id[:8]} {iso(event.created_at)}"))
    lines.append(("author", npub(event.pubkey)))
    return lines


def readers_of(event: Event) -> str:
    """Who may read a record."""
    group = event.tag("h")
    return "its author and the owner" if group is None else f"group:{group}"


def _lines_in(known: Known, others_notes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    match known:
        case UnreadableRecord():
            yield "unreadable", known.why
        case AgentMemory():
            yield from _listed("text", known.text.splitlines())
        case CollectiveMemory():
            yield "tier", known.tier
            yield "summary", known.summary
            yield from _listed("detail", known.detail.splitlines())
            yield "confidence", f"{known.confidence:g}"
        case UserMemory():
            yield from _of_user(known, others_notes)
        case GroupMemory():
            yield from _of_group(known, others_notes)
        case _:
            assert_never(known)


def _of_user(memory: UserMemory, others_notes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    names = (f"{name} (since {iso(since)})" for name, since in reversed(memory.display_names))
    yield from _listed("names", names)
    if memory.is_owner:
        yield "owner", "yes"
    if memory.first_seen is not None:
        where = "" if memory.first_seen_group is None else f" in group:{memory.first_seen_group}"
        yield "first seen", f"{iso(memory.first_seen)}{where}"
    if memory.last_interaction is not None:
        yield "last seen", iso(memory.last_interaction)
    pairs = (f"{name}={value}" for name, value in sorted(memory.preferences.items()))
    yield from _listed("preferences", pairs)
    yield from _notes(memory, others_notes)


def _of_group(memory: GroupMemory, others_notes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if memory.purpose is not None:
        yield "purpose", memory.purpose
    yield from _listed("themes", memory.themes)
    yield from _listed("decisions", (f"{text} ({iso(at)})" for text, at in memory.decisions))
    yield from _listed("members", (f"{name} {key}".strip() for key, name in memory.members))
    if memory.last_activity is not None:
        yield "last active", iso(memory.last_activity)
    yield from _notes(memory, others_notes)


def _notes(
    memory: UserMemory | GroupMemory, others_notes: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    of_owners = [
        f"{_OWNER}{note} (read by {others_notes[note]})" if note in others_notes else _OWNER + note
        for note in memory.owner_notes
    ]
    yield from _listed("notes", (*memory.notes, *of_owners))


def _listed(what: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for position, text in enumerate(texts):
        yield what if position == 0 else "", text


def iso(at: int) -> str:
    """`2026-02-18T00:00:00Z`; the plain number beyond the year 9999."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(at)
