"""CollectiveMemory: what agents share about a topic (S-27)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.fields import compact_repaired, no_object, storable_object
from relay.memory.snowclaw.checks import collective_fault
from relay.memory.snowclaw.contents import joined
from relay.memory.snowclaw.encryption import content_of
from relay.memory.snowclaw.keys import COLLECTIVE
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.memory.snowclaw.encryption import OwnKey
    from relay.nostr.event import Event


class Tier(StrEnum):
    """Its readers."""

    PUBLIC = "public"
    """Owner, agents and every member of a group of the relay."""
    GROUP = "group"
    """The members of `h`."""
    PRIVATE = "private"
    """Author and owner."""


@dataclass(frozen=True, slots=True)
class CollectiveMemory:
    topic: str
    """Such as `rust/error-handling`."""
    summary: str
    detail: str
    tier: Tier
    model: str
    confidence: float
    """0 to 1."""
    source: str
    """Public key of the source."""
    version: int = 1
    context: str | None = None
    labels: tuple[str, ...] = ()
    """The `t` tags."""
    group: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    """Other fields of the content."""


def collective_draft(memory: CollectiveMemory, created_at: int) -> Draft:
    tags = [
        ["d", f"{COLLECTIVE}{memory.topic}"],
        ["snow:tier", memory.tier.value],
        ["snow:model", memory.model],
        ["snow:confidence", repr(memory.confidence)],
        ["snow:source", memory.source],
        ["snow:version", str(memory.version)],
    ]
    if memory.group is not None:
        tags.append(["h", memory.group])
    tags += (["t", label] for label in memory.labels)
    fields = {"summary": memory.summary, "detail": memory.detail, "context": memory.context}
    return Draft(kinds.APP_DATA, tags, compact_repaired(joined(fields, memory.extra)), created_at)


def collective_in(event: Event, key: OwnKey | None = None) -> CollectiveMemory | UnreadableRecord:
    """`key`: of the reader."""
    content = content_of(event, key)
    if isinstance(content, UnreadableRecord):
        return content
    try:
        if not event.d.startswith(COLLECTIVE):
            raise Invalid("d must be snow:memory:<topic>")
        wrong = collective_fault(event)
        if wrong is not None:
            raise Invalid(wrong)
        fields = storable_object(content)
        if fields is None:
            raise Invalid(no_object(content))
        return CollectiveMemory(
            topic=event.d.removeprefix(COLLECTIVE),
            summary=_text(fields, "summary") or "",
            detail=_text(fields, "detail") or "",
            tier=Tier(event.tag("snow:tier") or ""),
            model=event.tag("snow:model") or "",
            confidence=float(event.tag("snow:confidence") or ""),
            source=event.tag("snow:source") or "",
            version=int(event.tag("snow:version") or ""),
            context=_text(fields, "context"),
            labels=tuple(event.tag_values("t")),
            group=event.tag("h"),
            extra={k: v for k, v in fields.items() if k not in ("summary", "detail", "context")},
        )
    except Invalid as fault:
        return UnreadableRecord(event, fault.text)


def _text(fields: dict[str, object], name: str) -> str | None:
    """Raises Invalid for anything but a string, null or a missing field."""
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise Invalid(f"content.{name} must be a string")
    return value
