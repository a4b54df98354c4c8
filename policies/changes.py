"""What a reload changed, for the log: rules added, changed and removed, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.engine import PolicySet


def rule_changes(old: PolicySet, new: PolicySet) -> str:
    """`added: a, b; changed: c; removed: d; settings changed: limits`; empty: no difference."""
    before, after = _rules_of(old), _rules_of(new)
    parts = [
        ("added", [name for name in after if name not in before]),
        ("changed", [name for name in after if name in before and before[name] != after[name]]),
        ("removed", [name for name in before if name not in after]),
        (
            "settings changed",
            [name for name in _SETTINGS if getattr(old, name) != getattr(new, name)],
        ),
    ]
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)


_SETTINGS: Final = (
    "actors",
    "groups",
    "limits",
    "memory",
    "auth_writes",
    "banned_rows",
    "searched",
    "trusted_readers",
    "plugins",
)


def _rules_of(policy: PolicySet) -> Mapping[str, list[object]]:
    """Each rule by name, with its parts for writing, reading and retention."""
    found: dict[str, list[object]] = {}
    for rule in policy.write_rules:
        nowhere = replace(rule, place=replace(rule.place, file="", line=0))
        found.setdefault(rule.place.name, []).append(nowhere)
    for read, place in zip(policy.read_rules, policy.read_places, strict=True):
        found.setdefault(place.name, []).append(read)
    for keep in policy.keep.rules:
        found.setdefault(keep.name, []).append(keep)
    for kept in policy.keep.history.rules:
        found.setdefault(kept.name, []).append(replace(kept, place=""))
    for going in policy.sweeps.rules:
        found.setdefault(going.name, []).append(replace(going, place=""))
    for place, effect in policy.retention_effects:
        found.setdefault(place.name, []).append(replace(effect, rules=()))
    return found
