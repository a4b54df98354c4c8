"""Rules as text for people: kinds by name, matches, readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.access.quotas import Per, Unit
from relay.facts import Who
from relay.lifecycle.rows import Keep
from relay.nostr.kinds import MAX_KIND, KindSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from policies.conditions import Condition
    from policies.plugins.definition import Plugin
    from policies.retention import RetentionEffect
    from policies.write_rule import Place, WriteRule
    from relay.access.read_rules import Match, ReadRule

_FAMILIES: Final = (
    (0, 0, "profiles"),
    (1, 1, "notes"),
    (3, 3, "contact lists"),
    (4, 4, "encrypted messages"),
    (5, 5, "deletions"),
    (6, 6, "reposts"),
    (7, 7, "reactions"),
    (9, 9, "chat"),
    (10, 12, "threads"),
    (13, 13, "seals"),
    (14, 15, "private messages"),
    (16, 16, "reposts"),
    (62, 62, "requests to vanish"),
    (78, 78, "app records"),
    (1059, 1059, "gift wraps"),
    (1080, 1081, "sealed envelopes"),
    (1082, 1082, "key shares"),
    (1111, 1111, "comments"),
    (1984, 1984, "reports"),
    (1988, 1988, "conversation notes"),
    (1989, 1989, "transcript sources"),
    (9000, 9022, "group records"),
    (9000, 9020, "moderation"),
    (9000, 9000, "members added"),
    (9001, 9001, "members removed"),
    (9002, 9002, "group settings"),
    (9005, 9005, "deleted group events"),
    (9007, 9007, "new groups"),
    (9008, 9008, "deleted groups"),
    (9009, 9009, "invites"),
    (9021, 9021, "requests to join"),
    (9022, 9022, "requests to leave"),
    (9735, 9735, "zaps"),
    (10002, 10002, "relay lists"),
    (10050, 10050, "relay lists for messages"),
    (21059, 21059, "ephemeral gift wraps"),
    (22242, 22242, "logins"),
    (24133, 24133, "remote signing"),
    (30023, 30023, "articles"),
    (30078, 30078, "app data"),
    (30090, 30097, "aman memory"),
    (30090, 30092, "aman documents"),
    (30093, 30093, "preferences"),
    (30094, 30094, "summaries"),
    (30095, 30095, "tool history"),
    (30096, 30096, "clears"),
    (30097, 30097, "subscription states"),
    (31234, 31234, "nomen memory"),
    (31988, 31988, "session states"),
    (31989, 31989, "session commands"),
    (31991, 31991, "run configurations"),
    (39000, 39005, "group state"),
    (39000, 39000, "group metadata"),
    (39001, 39001, "admins of a group"),
    (39002, 39002, "members of a group"),
    (39003, 39003, "roles of a group"),
    (39004, 39004, "participants of a group"),
    (39005, 39005, "pins of a group"),
)
"""(first kind, last kind, name)."""
_SPANS: Final = frozenset((low, high) for low, high, _ in _FAMILIES)
_MAX_LISTED: Final = 8
"""A wider range of kinds is shown by its ends only."""
_WIDEST_FIRST: Final = sorted(_FAMILIES, key=lambda family: (family[0], -family[1]))


def kinds_text(kinds: KindSet) -> str:
    """`profiles (0), kinds 40-45`."""
    if kinds.ranges == ((0, MAX_KIND),):
        return "every kind"
    if not kinds.ranges:
        return "no kind at all"
    return ", ".join(part for low, high in kinds.ranges for part in _range_parts(low, high))


def _range_parts(low: int, high: int) -> Iterator[str]:
    at = low
    if high - low > _MAX_LISTED and (low, high) not in _SPANS:
        yield f"kinds {low}-{high}"
        return
    while at <= high:
        family = next((each for each in _WIDEST_FIRST if each[0] == at and each[1] <= high), None)
        if family is not None:
            yield f"{family[2]} ({span_text(family[0], family[1])})"
            at = family[1] + 1
            continue
        after = min((each[0] for each in _WIDEST_FIRST if at < each[0] <= high), default=high + 1)
        yield f"kind {at}" if after == at + 1 else f"kinds {span_text(at, after - 1)}"
        at = after


def span_text(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def match_text(match: Match | Condition, excepts: Iterable[Match | Condition] = ()) -> str:
    """`app data (30078) with d snowclaw:config:…; does not apply to deletions (5)`."""
    left = "; ".join(_parts_text(other) or "everything" for other in excepts)
    text = _parts_text(match) or "everything"
    return f"{text}; does not apply to {left}" if left else text


def _parts_text(match: Match | Condition) -> str:
    parts = [] if match.kinds is None else [kinds_text(match.kinds)]
    if isinstance(match.h, bool):
        parts.append("in a group" if match.h else "in no group")
    elif match.h is not None:
        parts.append("in " + _either(match.h))
    classes: Sequence[tuple[Who, frozenset[str]]] = getattr(match, "classes", ())
    authors = sorted(word.value for word in getattr(match, "who", None) or dict(classes))
    keys = (match.authors or frozenset()).difference(*[listed for _, listed in classes])
    authors += [f"{key[:12]}…" for key in sorted(keys)]
    if authors:
        parts.append("by " + " or ".join(authors))
    if match.d is not None:
        parts.append("under d " + _either(match.d))
    if match.d_prefixes is not None:
        parts.append("under d " + " or ".join(f"{prefix}…" for prefix in match.d_prefixes))
    for name, wanted in match.tags:
        if isinstance(wanted, bool):
            parts.append(f"{'tagged' if wanted else 'not tagged'} {name}")
        else:
            parts.append(f"tagged {name} {_either(wanted)}")
    parts.extend(_more_text(match))
    if match.kinds is None and parts:
        parts.insert(0, "events")
    return " ".join(parts)


def _more_text(match: Match | Condition) -> Iterator[str]:
    """The conditions that exist only for incoming events, or only for stored rows."""
    chars = getattr(match, "content_chars", None)
    if chars is not None:
        yield f"of more than {chars} characters"
    size = getattr(match, "event_bytes", None)
    if size is not None:
        yield f"of more than {size} bytes"
    age = getattr(match, "age", None)
    if age is not None:
        yield f"more than {seconds_text(age)} old"
    login = getattr(match, "login", None)
    if login is not None:
        yield "from a connection logged in as " + " or ".join(sorted(word.value for word in login))
    local = getattr(match, "local", None)
    if local is not None:
        yield f"{'' if local else 'not '}from a program on the relay's machine"
    replaces = getattr(match, "replaces", None)
    if replaces is not None:
        yield f"that replace or delete {'a' if replaces else 'no'} stored event of the author"
    if getattr(match, "wraps_for_known", None):
        yield "addressed to a known key"
    quiet = getattr(match, "quiet", None)
    if quiet is not None:
        yield f"that delete an event {'not ' if quiet else ''}everyone may read"
    if getattr(match, "ended", None):
        yield "in a deleted group"


def _either(values: Iterable[str]) -> str:
    return " or ".join(sorted(values)) or "(no value)"


_NUMBERED: Final = ((86_400, "d"), (3600, "h"), (60, "min"))


def seconds_text(seconds: int) -> str:
    """`14 d`, `10 min`, `90 s`."""
    for size, unit in _NUMBERED:
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


_WORDS: Final = {
    Who.ANYONE: "anyone",
    Who.NOBODY: "nobody",
    Who.OWNER: "owners",
    Who.AGENT: "agents",
    Who.MEMBER: "members of any group",
    Who.KNOWN: "known keys",
    Who.INSIDER: "members of its group",
    Who.ADMIN: "admins of its group",
    Who.GROUP: "readers of its group",
    Who.VISIBLE: "those who may see its group",
    Who.AUTHOR: "its author",
    Who.RECIPIENT: "the keys in its p tags",
    Who.TRUSTED: "trusted readers",
    Who.TARGET: "readers of its target",
}


def who_text(words: Iterable[Who], tag_readers: Iterable[str] = ()) -> str:
    """`owners, agents`."""
    text = [_WORDS[word] for word in Who if word in set(words)]
    text += [f"the keys in its {name} tags" for name in tag_readers]
    return ", ".join(text)


def writers_text(rule: WriteRule) -> str:
    """The authors whom this rule accepts; empty when it does not restrict the author."""
    return "" if rule.writers is None else who_text(rule.writers)


def readers_text(rule: ReadRule) -> str:
    text = who_text(rule.readers - {Who.TARGET}, rule.tag_readers)
    if (target := rule.effective_target) is not None:
        rows = kinds_text(KindSet.of(*target.kinds))
        at = "" if target.d_prefix is None else f" under d {target.d_prefix}…"
        others = f"readers of {rows}{at} with the same {target.tag}"
        text = f"{text}, {others}" if text else others
    if rule.only_by is None:
        return text
    return f"{text}, when asked for by {' or '.join(sorted(rule.only_by))}"


def where_text(place: Place) -> str:
    """`file:line`; empty for what is in no file."""
    return f"{place.file}:{place.line}" if place.file else ""


def form_text(rule: WriteRule) -> str:
    """The form the rule requires of an event; empty when it requires none."""
    tags = tuple(dict.fromkeys((*rule.require, *rule.schema_tags)))
    parts = [f"tags {', '.join(tags)}"] if tags else []
    if rule.schema is not None:
        parts.append(f"the form of {rule.schema.name}")
    if rule.pow_bits:
        parts.append(f"{rule.pow_bits} bits of work")
    if rule.content is not None and rule.content.is_json:
        parts.append("a JSON object")
    if rule.content is not None and rule.content.refuse is not None:
        parts.append("no match of its patterns")
    if rule.record_rule is not None:
        parts.append("an author who owns the target, or an owner")
    return ", ".join(parts)


_COUNTED: Final = {
    Unit.EVENTS: "",
    Unit.BYTES: " bytes",
    Unit.SIGNED: " bytes of what the relay signs",
}


def amounts_text(rule: WriteRule) -> str:
    """The rate and quota of the rule; empty when it has none."""
    limit, parts = rule.usage_limit, []
    if limit is not None and limit.rate is not None:
        rate = limit.rate
        what = _COUNTED[rate.counts]
        parts.append(f"{rate.refill}{what} a minute {_of(rate.per)}, {rate.burst} at once")
    if limit is not None and limit.quota is not None:
        quota = limit.quota
        parts += [
            f"{number} {what} {'a day' if quota.is_of_a_day else 'stored'} {_of(quota.per)}"
            for number, what in ((quota.events, "events"), (quota.bytes, "bytes"))
            if number is not None
        ]
    return ", ".join(parts)


_KEEPS: Final = {
    Keep.ALL: "all versions",
    Keep.LATEST: "the latest version",
    Keep.LATEST_TS: "the latest version by ts",
    Keep.FIRST: "the first version",
}


def _of(per: Per) -> str:
    return "for the whole relay" if per is Per.RELAY else f"per {per.value}"


def keep_text(keep: Keep) -> str:
    return _KEEPS[keep]


def held_text(effect: RetentionEffect) -> str:
    """Which rows a retention rule protects; empty when it protects none."""
    if effect.never is not None:
        return f"{match_text(effect.never)}: always"
    if effect.waiting is None:
        return ""
    match, before = effect.waiting
    rows = f"{kinds_text(before.kinds)} of the same {' and '.join(before.same)}"
    return f"{match_text(match)}: while there are {rows}, no newer by {before.up_to.value}"


def plugin_text(plugin: Plugin) -> str:
    """`a process: filter.py --fast, within 500 ms`."""
    words = plugin.way.words
    if isinstance(words, str):
        return f"a function: {words}, within {plugin.deadline_ms} ms"
    return f"a process: {' '.join(words)}, within {plugin.deadline_ms} ms"
