"""Conditions of `match` and `except`: for an incoming event, and for a stored row.

An incoming event is a `Condition`, a stored row a `Match` of `relay.access.read_rules`. A Condition
has more keys, for facts that only exist at the time of writing: who-words, the age of the event,
what it replaces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from relay.access.read_rules import RULE_TAGS, Match
from relay.facts import Origin, Who
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.toml.fields import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from relay.access.actors import Actors
    from relay.facts import Facts
    from relay.nostr.event import Event
    from relay.nostr.kinds import KindSet
    from relay.toml.fields import Table

MATCH_KEYS: Final = (
    "kinds",
    "d",
    "d_prefix",
    "h",
    "authors",
    "tags",
    "content_chars",
    "event_bytes",
    "age",
    "replaces",
    "login",
    "local",
)
WRITE_ONLY: Final = ("content_chars", "event_bytes", "age", "replaces", "login", "local")
PACKAGED_ONLY: Final = ("quiet", "ended")

WRITERS: Final = (
    Who.ANYONE,
    Who.NOBODY,
    Who.OWNER,
    Who.AGENT,
    Who.MEMBER,
    Who.KNOWN,
    Who.INSIDER,
    Who.ADMIN,
)
"""Who-words for authors; the others apply to readers only."""
LOGINS: Final = tuple([word for word in WRITERS if word not in (Who.ANYONE, Who.NOBODY)])
LISTED: Final = frozenset({Who.OWNER, Who.AGENT})
"""Who-words whose keys are listed in the policy files, so that they also apply to stored rows."""
OF_GROUP: Final = frozenset({Who.INSIDER, Who.ADMIN, Who.AGENT})
"""Who-words that depend on the group of the event: AGENT by the role `agent_role`."""
READERS: Final = tuple(Who)

READ_TAGS: Final = RULE_TAGS | {"shared"}
"""Tag names longer than one letter for read rules; a store indexes all but `shared`."""

TagRules = tuple[tuple[str, bool | frozenset[str]], ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """Which incoming events a rule matches; every field that is not None must hold."""

    kinds: KindSet | None = None
    d: frozenset[str] | None = None
    d_prefixes: tuple[str, ...] | None = None
    h: bool | frozenset[str] | None = None
    who: frozenset[Who] | None = None
    """The who-words of `authors`. The author must match one of these or of the keys."""
    authors: frozenset[str] | None = None
    """The keys of `authors`."""
    tags: TagRules = ()
    wraps_for_known: bool | None = None
    """`tags = { p = ["known"] }` on gift wraps: some `p` is a known key."""
    content_chars: int | None = None
    """The content has more characters than this."""
    event_bytes: int | None = None
    """The event has more bytes than this, as JSON."""
    age: int | None = None
    """created_at is more than this many seconds in the past."""
    replaces: bool | None = None
    """Replaces a stored event of its author, or deletes one (kind 5)."""
    login: frozenset[Who] | None = None
    """A key that is logged in on the connection is one of these."""
    local: bool | None = None
    """The client is a program on the relay's machine."""

    def holds(self, event: Event, facts: Facts) -> bool:
        if self.h is not None and not _h_holds(self.h, facts.group):
            return False
        if self.who is not None and not self._author_holds(event, facts):
            return False
        if self.login is not None and self.login.isdisjoint(facts.authenticated_who):
            return False
        if self.local is not None and facts.is_local is not self.local:
            return False
        if self.age is not None and (
            # Time windows do not apply to imports.
            facts.origin is not Origin.WIRE or facts.now - event.created_at <= self.age
        ):
            return False
        if self.replaces is not None and self._replaces(event, facts) is not self.replaces:
            return False
        if self.wraps_for_known is not None and facts.wraps_for_known is not self.wraps_for_known:
            return False
        return self.fits(event)

    def fits(self, event: Event) -> bool:
        """Whether the conditions on the event itself hold."""
        if self.kinds is not None and event.kind not in self.kinds:
            return False
        if self.d is not None and event.d not in self.d:
            return False
        if self.d_prefixes is not None and not event.d.startswith(self.d_prefixes):
            return False
        if self.content_chars is not None and len(event.content) <= self.content_chars:
            return False
        if self.event_bytes is not None and len(event.raw) <= self.event_bytes:
            return False
        return all(_tag_holds(event, name, wanted) for name, wanted in self.tags)

    def _author_holds(self, event: Event, facts: Facts) -> bool:
        assert self.who is not None
        assert self.authors is not None
        return not self.who.isdisjoint(facts.who) or event.pubkey in self.authors

    def _replaces(self, event: Event, facts: Facts) -> bool:
        return facts.deletes_own if event.kind == kinds.DELETION else facts.replaces

    @property
    def asks_facts(self) -> bool:
        """Whether it depends on more than the event."""
        asked = (self.h, self.who, self.login, self.age, self.replaces, self.wraps_for_known)
        return any(each is not None for each in (*asked, self.local))

    def asks_group(self, of_group: Set[Who] = OF_GROUP) -> bool:
        """Whether it depends on the group of the event's row. `of_group`: words that do."""
        words = (self.who or frozenset()) | (self.login or frozenset())
        return self.h is not None or not words.isdisjoint(of_group)

    def for_kind(self, kind: int) -> Condition | None:
        """The conditions left to check for this kind; None: the kind never matches."""
        if self.kinds is None:
            return self
        return replace(self, kinds=None) if kind in self.kinds else None


EVERYTHING: Final = Condition()


def _h_holds(wanted: bool | frozenset[str], h: str | None) -> bool:  # noqa: FBT001
    return (h is not None) is wanted if isinstance(wanted, bool) else h in wanted


def _tag_holds(event: Event, name: str, wanted: bool | frozenset[str]) -> bool:  # noqa: FBT001
    if not isinstance(wanted, bool):
        return any(value in wanted for value in event.tag_values(name))
    if len(name) == 1 and name.isalpha():  # such a tag counts only with a value
        return bool(event.tag_values(name)) is wanted
    return event.has_tag(name) is wanted


def condition_from(table: Table) -> Condition:
    """A `match` or `except` of a write rule."""
    table.refuse_unknown(_known(table))
    for key in PACKAGED_ONLY:
        if table.has(key):
            table.wrong(key, f"{key} applies to stored rows only")
    parts = _common(table)
    who, authors = _authors(table)
    tags, wraps_for_known = _tags_of_a_write(table, parts)
    return Condition(
        parts.kinds,
        parts.d,
        parts.d_prefixes,
        parts.h,
        who,
        authors,
        tags,
        wraps_for_known,
        table.integer("content_chars"),
        table.integer("event_bytes"),
        table.integer("age"),
        table.boolean("replaces"),
        who_words(table, "login", LOGINS, "for a login"),
        table.boolean("local"),
    )


def match_of_kept(table: Table) -> Match:
    """A `match` of `[[retention]]`; `with_keys_of` later resolves its who-words to keys."""
    match = _match_of_rows(table)
    for word, _ in match.classes:
        if word not in LISTED:
            table.wrong(
                "authors",
                f'"{word.value}" does not apply to stored events; authors there '
                "can be keys, owner and agent",
            )
    return match


def _match_of_rows(table: Table) -> Match:
    table.refuse_unknown(_known(table))
    for key in WRITE_ONLY:
        if table.has(key):
            table.wrong(key, f"{key} applies to incoming events only, not to stored ones")
    parts = _common(table)
    who, authors = _authors(table)
    words = [word for word in WRITERS if who is not None and word in who]
    return replace(
        parts,
        authors=authors,
        tags=_tags(table),
        quiet=table.boolean("quiet"),
        ended=table.boolean("ended"),
        classes=tuple([(word, frozenset()) for word in words]),
    )


def with_keys_of(match: Match, actors: Actors) -> Match:
    """The match with its who-words for authors resolved to the keys of the policy files."""
    if not match.classes:
        return match
    keys_of = {
        Who.OWNER: actors.owners.union(*[home.owners for home in actors.households]),
        Who.AGENT: actors.agents.union(*[home.agents for home in actors.households]),
    }
    classes = tuple([(word, keys_of[word]) for word, _ in match.classes])
    authors = (match.authors or frozenset()).union(*[keys for _, keys in classes])
    return replace(match, authors=authors, classes=classes)


def match_of_readable(table: Table) -> Match:
    """A `match` or `except` of a read rule; a store compiles it to its tag index."""
    match = _match_of_rows(table)
    if match.classes:
        table.wrong("authors", "authors of a rule with `read` must be keys, not who-words")
    for name, wanted in match.tags:
        if name not in READ_TAGS and not (is_letter(name) and not isinstance(wanted, bool)):
            table.source.fault(
                (*table.path, "tags", name),
                f'tag "{name}" in a rule with `read` is not offered by this version; offered: '
                "single letters with values, " + ", ".join(sorted(READ_TAGS)),
            )
    return match


def is_letter(name: str) -> bool:
    """Whether every store indexes tags of this name."""
    return len(name) == 1 and name.isascii() and name.isalpha()


def who_words(
    table: Table, key: str, offered: Sequence[Who], what_for: str
) -> frozenset[Who] | None:
    """`write`, `read`, `create`: the who-words that are `offered` for this key."""
    values = table.strings(key)
    if values is None:
        return None
    if not values:
        table.wrong(key, f'{key} is empty; write ["nobody"] if nobody is meant')
    words = {word.value: word for word in offered}
    every = {word.value for word in Who}
    found = set()
    for number, value in enumerate(values):
        if value in words:
            found.add(words[value])
        elif value.startswith("tag:") and offered is READERS:
            continue
        elif value in every or value.startswith("tag:"):
            table.wrong_item(
                key,
                number,
                f'"{value}" is not valid {what_for}; {key} takes {", ".join(words)}',
            )
        elif value[:5] in ("npub1", "nsec1") or is_hex64(value):
            table.wrong_item(key, number, f"{key} takes who-words, not keys: {', '.join(words)}")
        else:
            table.wrong_item(
                key, number, f'unknown who-word "{value}" in {key}{nearest(value, words)}'
            )
    return frozenset(found)


def _known(table: Table) -> tuple[str, ...]:
    return (*MATCH_KEYS, *PACKAGED_ONLY) if table.source.packaged else MATCH_KEYS


def _common(table: Table) -> Match:
    d = table.strings("d")
    d_prefixes = table.strings("d_prefix")
    return Match(
        table.kinds("kinds"),
        None if d is None else frozenset(d),
        None if d_prefixes is None else tuple(d_prefixes),
        _h(table),
    )


def _h(table: Table) -> bool | frozenset[str] | None:
    value = table.values.get("h")
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    ):
        return frozenset([value] if isinstance(value, str) else value)
    if table.has("h"):
        table.wrong("h", "h must be true, false or a list of group ids")
    return None


def _authors(table: Table) -> tuple[frozenset[Who] | None, frozenset[str] | None]:
    values = table.strings("authors")
    if values is None:
        return None, None
    words = {word.value: word for word in WRITERS}
    who: set[Who] = set()
    keys: set[str] = set()
    for number, value in enumerate(values):
        if value in words:
            who.add(words[value])
        elif value.isalpha() and len(value) < 20:  # a word, not a key
            table.wrong_item(
                "authors", number, f'unknown word "{value}" in authors{nearest(value, words)}'
            )
        else:
            key = table.key_of("authors", number, value)
            if key is not None:
                keys.add(key)
    return frozenset(who), frozenset(keys)


def _tags(table: Table) -> TagRules:
    tags = table.table("tags")
    if tags is None:
        return ()
    found: list[tuple[str, bool | frozenset[str]]] = []
    for name, value in tags.values.items():
        if isinstance(value, bool):
            found.append((name, value))
        else:
            values = tags.strings(name)
            if values is not None:
                found.append((name, frozenset(values)))
    return tuple(found)


def _tags_of_a_write(table: Table, parts: Match) -> tuple[TagRules, bool | None]:
    tags = _tags(table)
    plain = tuple((name, wanted) for name, wanted in tags if not _names_known(name, wanted))
    if len(plain) == len(tags):
        return tags, None
    wanted = parts.kinds
    if wanted is None or any(low != high or low not in kinds.WRAPS for low, high in wanted.ranges):
        table.source.fault(
            (*table.path, "tags", "p"),
            'tags p = ["known"] is offered for the kinds 1059, 21059 and 24133 only',
        )
    return plain, True


def _names_known(name: str, wanted: bool | frozenset[str]) -> bool:  # noqa: FBT001
    return name == "p" and not isinstance(wanted, bool) and Who.KNOWN.value in wanted
