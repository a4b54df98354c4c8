"""Records of Anamnesis, signed by the cast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from relay.memory.anamnesis.records import (
    Entry,
    Memory,
    Patch,
    Supersession,
    Vouch,
    entry_draft,
    patch_draft,
    record_in,
    supersession_draft,
    timestamp_of,
    vouch_draft,
)

if TYPE_CHECKING:
    from relay.memory.anamnesis.checks import Attestation
    from relay.memory.draft import Draft
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

NOON = 1_772_000_000
_Record = TypeVar("_Record", Memory, Vouch, Supersession, Patch)


def entry_of(content: str, *, at: int = NOON, name: str = "Robot", **more: Any) -> Entry:
    return Entry(content, "some id", name, timestamp_of(at), **more)


def told(who: SecretKey, content: str, *, at: int = NOON, **more: Any) -> Event:
    """An entry."""
    return signed(who, entry_draft(entry_of(content, at=at, **more)))


def vouched(
    who: SecretKey,
    of: str,
    *,
    at: int = NOON,
    attestation: Attestation | None = None,
    confidence: float = 1.0,
    group: str | None = None,
) -> Event:
    more = {} if attestation is None else {"attestation": attestation}
    draft = vouch_draft(
        of, who.pubkey, name=None, created_at=at, confidence=confidence, group=group, **more
    )
    return signed(who, draft)


def superseded(
    who: SecretKey, old: str, new: str, *, at: int = NOON, group: str | None = None
) -> Event:
    return signed(who, supersession_draft(old, new, created_at=at, group=group))


def patched(
    who: SecretKey, of: str, *, at: int = NOON, group: str | None = None, **fields: object
) -> Event:
    return signed(who, patch_draft(of, fields, created_at=at, group=group))


def signed(who: SecretKey, draft: Draft) -> Event:
    return who.sign(*draft)


def read(kind: type[_Record], event: Event) -> _Record:
    record = record_in(event)
    assert isinstance(record, kind), record
    return record
