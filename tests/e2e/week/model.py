"""What must come of a week: dicts and lists, and the sentences of the systems' documents.

Nothing of the product is used here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

OWNER: Final = "owner"
SHARED: Final = "shared"
"""Scope of what all agents and members read; the others are a group's id, and PRIVATE."""
PRIVATE: Final = "private"
RING: Final = 20
"""Messages of a ring that nobody configured."""


@dataclass
class Text:
    """One text that somebody wrote, known again by a word of its own."""

    word: str
    author: str
    scope: str
    seen_by: set[str] = field(default_factory=set)
    """Who could ever read it."""
    is_erased: bool = False


@dataclass
class Memory:
    """Aman: one history key of one agent. Times are pairs (second, number of the step)."""

    preference: str | None = None
    topics: tuple[str, ...] = ()
    summary: tuple[tuple[int, int], str] | None = None
    tools: list[tuple[tuple[int, int], str]] = field(default_factory=list)
    clears: list[tuple[int, int]] = field(default_factory=list)
    preferred_at: tuple[int, int] = (0, 0)
    subscribed_at: tuple[int, int] = (0, 0)

    def shown(self) -> dict[str, Any]:
        """The last clear hides what was written before it, but preference and topics."""
        cleared = max(self.clears, default=(0, 0))
        summary = self.summary
        return {
            "preference": self.preference,
            "topics": self.topics,
            "summary": summary[1] if summary is not None and summary[0] > cleared else None,
            "tools": sorted(text for at, text in self.tools if at > cleared),
        }


@dataclass
class Entry:
    """Anamnesis."""

    text: str
    author: str
    scope: str
    fields: dict[str, Any]
    vouches: dict[str, str] = field(default_factory=dict)
    """Who → attestation."""
    successors: dict[str, str] = field(default_factory=dict)
    """By whom → hash; the last of each."""
    amended: dict[str, Any] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        by = OWNER if OWNER in self.successors else self.author
        return {
            "content": self.text,
            **self.fields,
            **self.amended,
            "vouchers": sorted(
                who
                for who, word in self.vouches.items()
                if word == "confirm" and who != self.author
            ),
            "superseded_by": self.successors.get(by),
        }


@dataclass
class Session:
    """nmem and transcripts: a session of one agent."""

    agent: str
    scope: str
    prompts: list[str] = field(default_factory=list)
    seen: list[tuple[str, str, bool]] = field(default_factory=list)
    """Observations: type, text, pinned."""
    intent: str | None = None
    turns: list[str] = field(default_factory=list)


@dataclass
class Subject:
    """Snowclaw: a user or group of one agent."""

    notes: set[str] = field(default_factory=set)
    preferences: dict[str, str] = field(default_factory=dict)
    purpose: str | None = None
    themes: set[str] = field(default_factory=set)
    decisions: set[str] = field(default_factory=set)


class Model:
    def __init__(self, groups: dict[str, set[str]], agents: set[str], names: set[str]) -> None:
        self.members = groups
        self.agents = agents
        self.names = names
        self.texts: list[Text] = []
        self.called: dict[str, str] = {}
        """Person → name."""
        self.titles: dict[str, str] = {}
        self.aman: dict[str, dict[str, Memory]] = defaultdict(lambda: defaultdict(Memory))
        self.entries: dict[str, Entry] = {}
        self.histories: dict[str, Session] = {}
        self.transcripts: dict[str, Session] = {}
        self.users: dict[str, dict[str, Subject]] = defaultdict(lambda: defaultdict(Subject))
        self.groups: dict[str, dict[str, Subject]] = defaultdict(lambda: defaultdict(Subject))
        self.own: dict[str, dict[str, str]] = defaultdict(dict)
        self.config: dict[str, dict[str, Any]] = defaultdict(dict)
        self.said: dict[str, list[str]] = {group: [] for group in groups}
        self.rings: dict[tuple[str, str, str], list[str]] = {}
        """(machine, agent, group)."""

    # -- who reads what ---------------------------------------------------------------------------

    def may_read(self, name: str, author: str, scope: str) -> bool:
        if name == OWNER:
            return True
        if scope == PRIVATE:
            return name == author
        if scope == SHARED:
            return name in self.agents or any(name in group for group in self.members.values())
        return name in self.members[scope]

    def wrote(self, word: str, author: str, scope: str) -> Text:
        text = Text(word, author, scope)
        self.texts.append(text)
        self.looked(text)
        return text

    def looked(self, *texts: Text) -> None:
        """Everybody may look at any time."""
        for text in texts or self.texts:
            if not text.is_erased:
                text.seen_by |= {
                    name for name in self.names if self.may_read(name, text.author, text.scope)
                }

    def erased(self, said: str) -> None:
        for text in self.texts:
            if text.word in said:
                text.is_erased = True

    # -- Snowclaw ---------------------------------------------------------------------------------

    def configured(self, group: str, person: str | None = None) -> tuple[str, int]:
        """The person's, else the group's, else everybody's; field by field."""
        found: dict[str, Any] = {"respond_mode": "mention", "context_history": RING}
        scopes = ["global", f"group:{group}"] + ([f"npub:{person}"] if person else [])
        for scope in scopes:
            found |= self.config.get(scope, {})
        return found["respond_mode"], found["context_history"]

    def trim(self) -> None:
        for (_, _, group), ring in self.rings.items():
            keep = self.configured(group)[1]
            del ring[: max(len(ring) - keep, 0)]

    # -- Anamnesis --------------------------------------------------------------------------------

    def remembered(self, text: str, author: str, scope: str, **fields: Any) -> str:
        hashed = sha256(text.encode()).hexdigest()
        self.entries[hashed] = Entry(text, author, scope, fields)
        return hashed
