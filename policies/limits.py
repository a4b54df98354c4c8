"""`content`, `rate` and `quota` of one `[[rule]]`: limits on contents, event rates and storage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from policies.conditions import MATCH_KEYS
from policies.patterns import patterns_from
from policies.rules.content import Content
from relay.access.quotas import Per, Quota, Rate, Unit, UsageLimit
from relay.nostr import kinds
from relay.nostr.kinds import KindSet
from relay.toml.fields import Table

if TYPE_CHECKING:
    from policies.conditions import Condition

_OF_A_DAY: Final = (Per.ADDRESS, Per.NETWORK, Per.RELAY)
_QUOTAS_ARE_PER: Final = (Per.AUTHOR, Per.GROUP, Per.RECIPIENT, *_OF_A_DAY)
_DAY_S: Final = 86_400
_WRAPS: Final = KindSet.of(kinds.GIFT_WRAP)
_NEVER_COUNTED: Final = sorted(
    {kinds.DELETION, kinds.VANISH, *kinds.GROUP_RECORDS, *kinds.GROUP_STATE}
)
"""Kinds never counted: without them nobody could free space or moderate a group."""
_COUNTED: Final = ("kinds", "h")
"""Match keys that select the counted rows."""
_OF_THE_SENDER: Final = ("authors", "login")
"""Match keys that select the authors whom the quota limits, not the rows."""


def content_from(rule: Table) -> Content | None:
    """`content` of a rule."""
    table = rule.table("content")
    if table is None:
        return None
    table.refuse_unknown(("json", "refuse"))
    is_json = table.boolean("json")
    refuse = patterns_from(table, "refuse")
    if table.values in ({}, {"json": False}):
        table.wrong("json", "content has no effect; set json = true or refuse = [patterns]")
    if table.values.get("refuse") == []:
        table.wrong("refuse", "refuse is empty")
    return Content(is_json is True, refuse)


def usage_limit_from(
    rule: Table, name: str, match: Condition, reject: str | None
) -> UsageLimit | None:
    """`rate` and `quota` of a rule, for the events that it matches."""
    rate, quota = _rate(rule, name), _quota(rule, name, match)
    return None if rate is None and quota is None else UsageLimit(name, rate, quota, reject)


def _rate(rule: Table, name: str) -> Rate | None:
    table = rule.table("rate")
    if table is None:
        return None
    table.refuse_unknown(("per", "burst", "per_minute", "counts"))
    for key in ("per", "burst", "per_minute"):
        if not table.has(key):
            table.wrong(key, f"rate needs {key}")
    per = table.choice("per", Per)
    burst, per_minute = table.integer("burst", 1), table.integer("per_minute", 1)
    counts = table.choice("counts", Unit) if table.has("counts") else Unit.EVENTS
    if per is None or burst is None or per_minute is None or counts is None:
        return None
    if per is Per.RECIPIENT:
        table.wrong(
            "per", "a rate is per author, connection, address, network, group, kind or relay"
        )
    return Rate(_name_of(rule, name), per, burst, per_minute, counts=counts)


def _quota(rule: Table, name: str, match: Condition) -> Quota | None:
    table = rule.table("quota")
    if table is None:
        return None
    table.refuse_unknown(("per", "events", "bytes"))
    if not table.has("per"):
        table.wrong("per", "quota needs per")
    if not table.has("events") and not table.has("bytes"):
        table.wrong("events", "quota needs events or bytes")
    per = table.choice("per", Per)
    events, size = table.integer("events"), table.integer("bytes")
    if per not in _QUOTAS_ARE_PER:
        if per is not None:
            table.wrong(
                "per",
                "a quota is per author, group, address, network, recipient or relay;"
                f" usage is not counted per {per.value}",
            )
        return None
    if per in _OF_A_DAY:
        key = _name_of(rule, name)
        allowances = [
            Rate(f"{unit.value} of {key}", per, most, max(most, 1), _DAY_S, unit)
            for unit, most in ((Unit.EVENTS, events), (Unit.BYTES, size))
            if most is not None
        ]
        # Deletions count, too, if the rule names them: they free nothing of what a day may bring.
        counted = _counted(None) if match.kinds is None else match.kinds
        return Quota(per, events, size, counted, allowances=tuple(allowances))
    _refuse_uncounted_keys(rule)
    if per is Per.RECIPIENT and (match.kinds != _WRAPS or match.h is not None):
        table.wrong("per", "a quota per recipient is about gift wraps: match = { kinds = [1059] }")
    return Quota(per, events, size, _counted(match.kinds), match.h)


def _name_of(rule: Table, name: str) -> str:
    return json.dumps([name, rule.values], sort_keys=True, default=str)


def _refuse_uncounted_keys(rule: Table) -> None:
    conditions = rule.values.get("match")
    if isinstance(conditions, dict):
        match = Table(rule.source, (*rule.path, "match"), conditions)
        _refuse_uncounted(match, (*_COUNTED, *_OF_THE_SENDER))
    for other in rule.tables("except"):
        _refuse_uncounted(other, _OF_THE_SENDER)


def _counted(kind_set: KindSet | None) -> KindSet:
    """These kinds (None: all) without those that no quota counts."""
    return (kinds.ALL_KINDS if kind_set is None else kind_set).without(_NEVER_COUNTED)


def _refuse_uncounted(match: Table, counted: tuple[str, ...]) -> None:
    for key in match.values:
        if key in MATCH_KEYS and key not in counted:
            match.wrong(
                key,
                f"{key} is not allowed in {match.label} of a rule with quota; "
                f"allowed there: {', '.join(counted)}, by which the store counts usage",
            )
