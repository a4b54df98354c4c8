"""Records of other tools' files, as records of the memory systems here; junk is kept out of
them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.memory.fields import is_integer
from relay.memory.interop.front_matter import front_matter_in
from relay.memory.junk import KeptOut, Why, core_of
from relay.memory.nmem.records import (
    Observation,
    Prompt,
    Session,
    observation_draft,
    prompt_draft,
    session_draft,
)
from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_draft
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.event import Event
from relay.nostr.nip50 import normalized

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.memory.draft import Draft
    from relay.memory.junk import Sieve

_SCOPE: Final = ("user_id", "agent_id", "app_id", "run_id")
"""Fields that name the user or agent of a text: equal texts of two users are no copies."""
_MILLISECONDS: Final = 10**11
"""Numbers from here on are times in milliseconds."""
_MAX_TIME: Final = 253_402_300_799
"""The end of the year 9999, in seconds."""
_MAX_KEY: Final = 512


class Form(StrEnum):
    """Whose files these are."""

    CLAUDE_MEM = "claude-mem"
    BASIC_MEMORY = "basic-memory"
    MEM0 = "mem0"
    NOMEN = "nomen"
    MARKDOWN = "markdown"
    ROOKERY = "rookery"
    """Signed events, as `rookery memory export` writes them."""


class Edit(NamedTuple):
    """The version that an edited file replaces; it must not replace another one."""

    version: str
    """Id of the version that was exported."""
    author: str
    """Public key of the author, who signs the new version."""


@dataclass(frozen=True, slots=True)
class Note:
    """A text of the agent's own memory."""

    memory: AgentMemory
    at: int | None
    """Unix seconds; None: the file does not say."""
    edits: Edit | None = None
    """None: not an edited note of an export."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A record of nmem."""

    record: Session | Prompt | Observation
    project: str


Record = Note | Recorded | Event


class Item(NamedTuple):
    where: str
    """`FILE:LINE`, or `FILE: PLACE` in a JSON document or a table."""
    record: Record
    changed: tuple[str, ...] = ()
    """Differences of the record to the file, and the reason for each."""


class Fault(NamedTuple):
    """A record that is not imported."""

    where: str
    why: str
    is_error: bool = True
    """False: nothing in the file must be corrected."""


Parsed = Item | Fault


def note(form: Form, key: str, text: str, at: int | None, where: str) -> Parsed:
    """A note, or the fault of its key or text. `key`: the source's own id; normalised, so that two
    machines make the same key."""
    key = normalized("NFC", key)
    if not key or len(key) > _MAX_KEY or not key.isprintable():
        return Fault(where, f"its id must be 1 to {_MAX_KEY} printable characters")
    if not text.strip():
        return Fault(where, "it has no text", is_error=False)
    if "\0" in text:
        return Fault(where, f"line {text[: text.index(chr(0))].count(chr(10)) + 1}: a NUL byte")
    return Item(where, Note(AgentMemory(key, text, form.value), at))


def draft_of(record: Note | Recorded, changed: int) -> Draft:
    """`changed`: the time of a note that does not say its own."""
    if isinstance(record, Note):
        return agent_memory_draft(record.memory, changed if record.at is None else record.at)
    match record.record:
        case Session() as session:
            return session_draft(session)
        case Prompt() as prompt:
            return prompt_draft(prompt)
        case Observation() as observation:
            return observation_draft(observation, record.project)


def time_of(value: object) -> int | None:
    """Unix seconds of an ISO 8601 date or date-time (UTC if it names no zone), or of a number of
    seconds or milliseconds; None for anything else, and for times before 1970."""
    if is_integer(value):
        seconds = value // 1000 if value >= _MILLISECONDS else value
    elif isinstance(value, str):
        try:
            at = datetime.fromisoformat(value.strip())
            seconds = int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp())
        except (ValueError, OverflowError):
            return None
    else:
        return None
    return seconds if 0 <= seconds <= _MAX_TIME else None


class Sifter:
    """Keeps junk out of an import: secrets, recalled text, near-duplicates.

    Near-duplicates are looked for among notes of one category that are about the same user, and
    among observations of one session.
    """

    def __init__(self, sieve: Sieve | None, stored: Iterable[AgentMemory] = ()) -> None:
        """`sieve`: None: everything is taken."""
        self._sieve = sieve
        self._known: dict[tuple[str, ...], tuple[str, str]] = {}
        for memory in stored:
            self._note(memory)

    def sifted(self, item: Item) -> Parsed:
        """The item as it may be stored."""
        if self._sieve is None:
            return item
        match item.record:
            case Note(memory):
                result = self._sieve.sifted(memory.text)
                if result.text is None:
                    return Fault(item.where, str(result.kept_out[-1]), is_error=False)
                line = _first_change(memory.text, result.text)
                told = [f"line {line} of the text: {each}" for each in result.kept_out]
                memory = replace(memory, text=result.text)
                if (copied := self._note(memory)) is not None:
                    return Fault(item.where, str(KeptOut(Why.COPY, copied)), is_error=False)
                changed = (*item.changed, *told)
                return Item(item.where, replace(item.record, memory=memory), changed)
            case Recorded(Observation() as observation):
                core = (observation.session, *core_of(observation.content))
                _, copied = self._known.setdefault(core, ("", observation.content))
                if copied is not observation.content:
                    return Fault(item.where, str(KeptOut(Why.COPY, copied)), is_error=False)
            case Event() as event:
                # Nothing can be taken out of a signed text.
                text = MEMORY_SYSTEMS.search_text(event) or ""
                if any(each.why is Why.SECRET for each in self._sieve.sifted(text).kept_out):
                    return Fault(item.where, "a signed record with a secret", is_error=False)
        return item

    def _note(self, memory: AgentMemory) -> str | None:
        """Remember a note; the text of another one with the same words."""
        head = front_matter_in(memory.text)
        if not (words := core_of(head.body)):
            return None
        core = (memory.category, *map(head.text, _SCOPE), "", *words)
        key, copied = self._known.setdefault(core, (memory.key, head.body))
        return None if key == memory.key else copied


def _first_change(text: str, other: str) -> int:
    """The first line that differs, from 1."""
    pairs = zip(text.split("\n"), other.split("\n"), strict=False)
    return next((number for number, (a, b) in enumerate(pairs, 1) if a != b), 1)
