"""`[[rule]]` and `[[retention]]` of one file, each checked on its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from policies.conditions import (
    EVERYTHING,
    READERS,
    WRITERS,
    condition_from,
    is_letter,
    match_of_kept,
    match_of_readable,
    who_words,
    with_keys_of,
)
from policies.limits import content_from, usage_limit_from
from policies.retention import RetentionEffect, effect_from, history_from
from policies.rules.people import CODED_WRITER_RULES
from policies.write_rule import Place, WriteRule
from relay.access.read_rules import Match, ReadRule, Target
from relay.facts import Who
from relay.lifecycle.rows import Keep
from relay.lifecycle.versions import HistoryRule, KeepRule
from relay.toml.fields import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.access.actors import Actors
    from relay.memory.registry import MemorySystems
    from relay.toml.fields import Table


@dataclass(slots=True)
class RuleDefinition:
    place: Place
    packaged: bool
    fixed: bool = False
    enabled: bool = True
    write: WriteRule | None = None
    read: ReadRule | None = None
    is_switch: bool = False
    """Only a name and `enabled`: switches an earlier rule on or off."""


@dataclass(slots=True)
class RetentionDefinition:
    place: Place
    packaged: bool
    enabled: bool = True
    match: Match = field(default_factory=Match)
    rule: KeepRule | None = None
    history: HistoryRule | None = None
    effect: RetentionEffect = field(default_factory=RetentionEffect)
    is_switch: bool = False

    def among(self, actors: Actors) -> RetentionDefinition:
        """The rule with its who-words resolved to the keys of these people."""
        match = with_keys_of(self.match, actors)
        rule = None if self.rule is None else replace(self.rule, match=match)
        history = None if self.history is None else replace(self.history, match=match)
        effect = self.effect.for_rows(match)
        return replace(self, match=match, rule=rule, history=history, effect=effect)


RULE_KEYS: Final = (
    "name",
    "enabled",
    "match",
    "except",
    "write",
    "read",
    "only_by",
    "target",
    "require",
    "schema",
    "content",
    "rate",
    "quota",
    "pow",
    "reject",
)
RETENTION_KEYS: Final = (
    "name",
    "enabled",
    "match",
    "keep",
    "history",
    "days",
    "count",
    "bytes",
    "never",
    "never_before",
)
_WRITE_KEYS: Final = ("write", "require", "schema", "content", "rate", "quota", "pow")
_REJECT_KEYS: Final = ("write", "require", "content", "rate", "quota", "pow")
"""Keys whose refusals use the text of `reject`."""
TARGET_KEYS: Final = ("kinds", "tag", "d_prefix")
_PACKAGED_RULE_KEYS: Final = ("fixed", "needs")


def named(tables: Sequence[Table], read: Callable[[Table, str], Any]) -> list[Any]:
    """Each table by its name; a name used twice in one file is a fault."""
    seen: dict[str, int] = {}
    found = []
    for table in tables:
        name = table.text("name")
        if name is None:
            if not table.has("name"):
                table.wrong("name", f"{table.label} needs a name")
            name = ""
        elif name in seen:
            table.wrong("name", f'"{name}" is used twice in this file, first in line {seen[name]}')
        seen.setdefault(name, table.line)
        found.append(read(table, name))
    return found


def _listed(keys: Sequence[str]) -> str:
    *most, last = keys
    return f"{', '.join(most)} or {last}"


_DOES_NOTHING: Final = f"a rule without {_listed(('read', *_WRITE_KEYS))} does nothing"


def _place(table: Table, name: str) -> Place:
    return Place(name, table.source.name, table.line)


def rule_from(table: Table, name: str, systems: MemorySystems) -> RuleDefinition:
    packaged = table.source.packaged
    known = (*RULE_KEYS, *_PACKAGED_RULE_KEYS) if packaged else RULE_KEYS
    table.refuse_unknown(known)
    enabled = table.boolean("enabled")
    rule = RuleDefinition(_place(table, name), packaged, enabled=enabled is not False)
    rule.fixed = packaged and bool(table.boolean("fixed"))
    if not set(table.values) - {"name", "enabled"}:
        rule.is_switch = table.has("enabled")
        if not rule.is_switch:
            table.source.fault(table.path, _DOES_NOTHING)
        return rule
    about_writing = any(table.has(key) for key in _WRITE_KEYS)
    if about_writing or (packaged and name in CODED_WRITER_RULES):
        rule.write = _write_rule(table, rule.place, systems)
    if table.has("read"):
        rule.read = _read_rule(table, name)
    else:
        for key in ("only_by", "target"):
            if table.has(key):
                table.wrong(key, f"{key} applies to reading and needs read")
    if not set(table.values) <= set(known):
        return rule  # a misspelt key may be the effect that is missed below
    if rule.write is None and rule.read is None:
        table.source.fault(table.path, _DOES_NOTHING)
    if table.has("reject") and not any(table.has(key) for key in _REJECT_KEYS):
        table.wrong("reject", f"reject is the text of a refusal; it needs {_listed(_REJECT_KEYS)}")
    return rule


def _write_rule(table: Table, place: Place, systems: MemorySystems) -> WriteRule:
    match = table.table("match")
    schema = table.text("schema")
    known = [*systems.by_name, "off"]
    if schema is not None and schema not in known:
        table.wrong("schema", f'unknown memory system "{schema}" in schema{nearest(schema, known)}')
    bits = table.integer("pow", 1)
    if bits is not None and bits > 256:
        table.wrong("pow", "pow must be a whole number of bits from 1 to 256")
    condition = EVERYTHING if match is None else condition_from(match)
    reject = table.text("reject")
    require = tuple(table.strings("require") or ())
    if table.values.get("require") == [] or "" in require:
        table.wrong("require", "require must name tags")
    return WriteRule(
        place,
        condition,
        tuple([condition_from(other) for other in table.tables("except")]),
        who_words(table, "write", WRITERS, "for writing"),
        require,
        systems.by_name.get(schema or ""),
        bits or 0,
        reject,
        content_from(table),
        # With `write`, reject is the text for the authors it refuses.
        usage_limit_from(table, place.name, condition, None if table.has("write") else reject),
        systems.record_rules.get(place.name),
    )


def _read_rule(table: Table, name: str) -> ReadRule:
    match = table.table("match")
    words = list(table.strings("read") or ())
    tags = tuple([word.removeprefix("tag:") for word in words if word.startswith("tag:")])
    for tag in tags:
        if not is_letter(tag) and tag != "scope":
            table.wrong(
                "read",
                f'the readers "tag:{tag}" are not offered by this version; '
                "offered: tag: and a single letter, tag:scope",
            )
    rule = ReadRule(
        name,
        Match() if match is None else match_of_readable(match),
        who_words(table, "read", READERS, "for reading") or frozenset(),
        tuple([match_of_readable(other) for other in table.tables("except")]),
        tags,
        _only_by(table),
        target=_target(table, words),
    )
    needs = table.text("needs") if table.source.packaged else None
    return rule if needs is None else replace(rule, needs=needs)


def _target(table: Table, words: Sequence[str]) -> Target | None:
    part = table.table("target")
    if Who.TARGET.value in words and not table.has("target"):
        table.wrong("read", 'the word "target" needs a key: target = { kinds, tag }')
    if part is None:
        return None
    if Who.TARGET.value not in words:
        table.wrong("target", 'target says what the word "target" means, and read does not use it')
    part.refuse_unknown(TARGET_KEYS)
    for key in ("kinds", "tag"):
        if not part.has(key):
            table.wrong("target", f"target needs {key}")
    kinds, tag, d_prefix = part.kinds("kinds"), part.text("tag"), part.text("d_prefix")
    if tag is not None and not is_letter(tag):
        part.wrong("tag", f'tag "{tag}" cannot be looked up: a single letter can')
    if kinds is not None and not kinds.ranges:
        part.wrong("kinds", "kinds is empty")
    if kinds is None or tag is None:
        return None
    numbers = [number for low, high in kinds.ranges for number in range(low, high + 1)]
    return Target(frozenset(numbers), tag, d_prefix)


def _only_by(table: Table) -> frozenset[str] | None:
    keys = table.strings("only_by")
    if keys is None:
        return None
    for number, key in enumerate(keys):
        tag = key[:1] == "#" and is_letter(key[1:])
        if key not in ("authors", "ids") and not tag:
            table.wrong_item(
                "only_by",
                number,
                f'only_by cannot name "{key}"{nearest(key, ("authors", "ids", "#p", "#e"))}',
            )
    return frozenset(keys)


_RETENTION_PARTS: Final = ("keep", "history", "days", "count", "bytes", "never", "never_before")
_NO_RETENTION_EFFECT: Final = f"a rule without {_listed(_RETENTION_PARTS)} does nothing"


def retention_from(table: Table, name: str, systems: MemorySystems) -> RetentionDefinition:
    table.refuse_unknown(RETENTION_KEYS)
    enabled = table.boolean("enabled")
    keep = RetentionDefinition(
        _place(table, name), table.source.packaged, enabled=enabled is not False
    )
    if not set(table.values) - {"name", "enabled"}:
        keep.is_switch = table.has("enabled")
        if not keep.is_switch:
            table.source.fault(table.path, _NO_RETENTION_EFFECT)
        return keep
    if not any(table.has(key) for key in _RETENTION_PARTS) and set(table.values) <= set(
        RETENTION_KEYS
    ):
        table.source.fault(table.path, _NO_RETENTION_EFFECT)
    match = table.table("match")
    keep.match = Match() if match is None else match_of_kept(match)
    how = table.choice("keep", Keep)
    keep.rule = None if how is None else KeepRule(name, keep.match, how)
    keep.history = history_from(table, keep.place, keep.match)
    keep.effect = effect_from(table, keep.place, keep.match, systems)
    return keep
