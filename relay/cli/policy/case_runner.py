"""Runs tables of cases (`policies.cases`): each event is judged as the lane judges it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from policies.cases import ACCEPT, HIDDEN, NO_LOGIN, NOW, SHOWN, Cast, policy_for
from relay.access.visibility import Viewer, visibility_for
from relay.cli.policy.worlds import CONNECTION, candidate_in, case_world
from relay.errors import Reject, ok_reply
from relay.lifecycle.rows import Stored
from relay.nostr.filters import Filter
from relay.write.candidate import Sender
from relay.write.judge import screen_and_judge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from policies import PolicySet
    from policies.cases import Case, CaseTable
    from relay.groups.group import Groups
    from relay.memory.registry import MemorySystems
    from relay.nostr.event import Event

_NO_RULE: Final = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one case."""

    case: Case
    got: str
    rule: str
    passed: bool


def results(table: CaseTable, folder: Path | None, systems: MemorySystems) -> Sequence[Result]:
    """Run every case against a policy folder (None: the packaged policies alone)."""
    policy = policy_for(table, folder, systems)
    return [result_of(case, policy) for case in table.cases]


def result_of(case: Case, policy: PolicySet) -> Result:
    cast, given = Cast(policy.actors), case.given
    allowed = cast.actors.allowed | {cast.key(name) for name in given.known}
    policy = policy.with_actors(replace(cast.actors, allowed=allowed))
    groups = given.groups(cast, policy.actors)
    event = case.event.of(cast)
    beside = [other.of(cast) for other in given.beside]
    if case.reads is not None:
        got = _read(case.reads, event, beside, policy, groups, cast, quiet=given.quiet)
        return Result(case, got, _NO_RULE, got == case.want)
    logged_in = frozenset(cast.keys(given.logged_in))
    sender = Sender(given.origin, logged_in, given.address, CONNECTION, is_local=given.local)
    candidate = candidate_in(event, policy, sender)
    world = case_world(candidate, policy, groups, given, beside, NOW)
    result = screen_and_judge(candidate, world).result
    ok, text = ok_reply(result)
    if ok:
        return Result(case, ACCEPT, _NO_RULE, case.want == ACCEPT and case.rule is None)
    rule = result.rule if isinstance(result, Reject) else _NO_RULE
    passed = case.want in (text, text.partition(":")[0]) and case.rule in (None, rule)
    return Result(case, text, rule, passed)


def _read(
    reader: str,
    event: Event,
    beside: Sequence[Event],
    policy: PolicySet,
    groups: Groups,
    cast: Cast,
    *,
    quiet: bool,
) -> str:
    keys = frozenset() if reader == NO_LOGIN else frozenset({cast.key(reader)})
    visible = visibility_for(Viewer(keys), policy.read_rules, policy.actors, groups)
    row = Stored(1, event, policy.row_group(event), quiet)
    # Filtered by author, because rules with `only_by` require such a filter.
    asked = Filter(authors=frozenset({event.pubkey}))
    rows = [Stored(1, other, policy.row_group(other)) for other in beside]
    readable = {
        target
        for target, value in visible.targets_of(row)
        if visible.may_read_one_of(rows, target, value)
    }
    return SHOWN if visible.may_read(row, asked, readable) else HIDDEN
