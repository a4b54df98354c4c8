"""When each text of a version that waits for the relay was noted.

A deletion is for what was noted up to its date, and a waiting version may hold what was noted
before that and after it. A deletion of a version that was made of what was forgotten has that
version's date, so that a relay refuses what it replaced too, and is for what was noted up to the
first deletion, whose date it names.

Each version names when the oldest text of the first one was noted. After a deletion a record begins
anew: a version of that is not made of what was deleted, however often the deletion is sent.

Of each text only a keyed hash is kept: beside an encrypted record it tells nothing to who reads the
file.
"""

from __future__ import annotations

import hmac
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from relay.memory.fields import whole_number
from relay.memory.snowclaw.groups import GroupMemory
from relay.memory.snowclaw.users import UserMemory
from relay.nostr.event import MADE_FROM
from relay.nostr.nip09 import address_tags, request_by_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from relay.nostr.event import Event

    EditDates = Mapping[str, int]
    """Hash of a text → when it was noted, Unix seconds; 0: the version before had it."""

NOTED_UNTIL: Final = "noted-until"
"""Tag of a kind 5: see `noted_until`. This project's own; docs/interop.md describes it."""
NOTED_SINCE: Final = "noted-since"
"""Tag of a version: see `noted_since`. Also described there."""

T = TypeVar("T")
M = TypeVar("M", UserMemory, GroupMemory, tuple[str, ...])
"""Of a user or group, or private notes."""


def noted_until(deletion: Event) -> int:
    """Up to when what a kind 5 is for was noted."""
    until = whole_number(deletion.tag(NOTED_UNTIL))
    return deletion.created_at if until is None else min(until, deletion.created_at)


def request_of_made(version: Event, until: int) -> list[list[str]]:
    """Tags of a kind 5, dated as this version, that deletes it and all before it. `until`: see
    `noted_until`."""
    return [*request_by_id([version]), *address_tags([version]), [NOTED_UNTIL, str(until)]]


def noted_since(base: Event | None, at: int) -> list[list[str]]:
    """The tag of a version that is made of `base`, if that has one. `at`: when the oldest text of
    this one was noted, if it is the first."""
    if base is None:
        return [[NOTED_SINCE, str(at)]]
    return [tag for tag in base.tags if tag[:1] == [NOTED_SINCE]]


def began_after(version: Event, deletion: Event) -> bool:
    """Whether the record of a version was begun after what a kind 5 is for. False: it was not, or
    an earlier or another program began it."""
    since = whole_number(version.tag(NOTED_SINCE))
    is_base = version.tag(MADE_FROM) in deletion.tag_values("e")  # whatever its date
    return since is not None and since > noted_until(deletion) and not is_base


class Deleted(NamedTuple):
    """What is deleted of a version that is younger than the deletion."""

    until: int
    """`noted_until` of the deletion."""
    dates: EditDates
    """Of the version's texts; one without a date is as old as the version."""


def edit_dates(
    before: M, edits: Iterable[tuple[Callable[[M], M], int]], after: M, at: int, key: bytes
) -> dict[str, int]:
    """Of a version with `after`, dated `at`, that these edits, with their times, made of
    `before`."""
    known = Counter(_texts(before))
    dates = dict.fromkeys(known, 0)
    for edit, made_at in edits:
        before = edit(before)
        now = Counter(_texts(before))
        # What is noted again is younger than a deletion in between.
        dates |= {text: min(made_at, at) for text, number in now.items() if number > known[text]}
        known = now
    return {_hash(text, key): dates.get(text, at) for text in _texts(after)}


def without_younger(before: M, after: M, deleted: Deleted, key: bytes) -> M:
    """What `after` has of `before`, and what was noted up to the deletion."""
    had = {*_texts(before)}

    def older(field: str, values: Iterable[T]) -> tuple[T, ...]:
        return tuple(value for value in values if is_older(_text(field, value)))

    def is_older(text: str) -> bool:
        at = deleted.dates.get(_hash(text, key))
        return text in had or (at is not None and at <= deleted.until)

    def up_to(at: int | None) -> int | None:
        return at if at is not None and at <= deleted.until else None

    if isinstance(after, UserMemory):
        return replace(
            after,
            display_names=older("name", after.display_names),
            first_seen=up_to(after.first_seen),
            notes=older("note", after.notes),
            owner_notes=older("owner_note", after.owner_notes),
            preferences=dict(older("preference", after.preferences.items())),
            last_interaction=up_to(after.last_interaction),
        )
    if isinstance(after, GroupMemory):
        return replace(
            after,
            purpose=next(iter(older("purpose", (after.purpose,))), None),
            themes=older("theme", after.themes),
            decisions=older("decision", after.decisions),
            notes=older("note", after.notes),
            owner_notes=older("owner_note", after.owner_notes),
            last_activity=up_to(after.last_activity),
        )
    return older("line", after)


def _texts(memory: UserMemory | GroupMemory | tuple[str, ...]) -> list[str]:
    if isinstance(memory, tuple):
        return [_text("line", line) for line in memory]
    fields: dict[str, Iterable[object]] = {"note": memory.notes, "owner_note": memory.owner_notes}
    if isinstance(memory, UserMemory):
        fields |= {"name": memory.display_names, "preference": memory.preferences.items()}
    else:
        fields |= {
            "purpose": (memory.purpose,),
            "theme": memory.themes,
            "decision": memory.decisions,
        }
    return [_text(field, value) for field, values in fields.items() for value in values]


def _text(field: str, value: object) -> str:
    return f"{field} {value!r}"


def _hash(text: str, key: bytes) -> str:
    return hmac.digest(key, text.encode(), "sha256")[:16].hex()
