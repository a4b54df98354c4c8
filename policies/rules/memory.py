"""Memory records in the policies: the checks of their systems, and rules that `[memory]` changes.

Order (G-03): the writer, required tags, `d`, content.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from policies.rules.people import ENVELOPES
from policies.settings import AnonymousRead, SchemaMode, TsRule, Vouchers
from relay.access.read_rules import Match
from relay.errors import Prefix, Reject
from relay.facts import Origin, Who
from relay.memory.check_options import CheckOptions

if TYPE_CHECKING:
    from policies.settings import Memory
    from policies.write_rule import WriteRule
    from relay.access.actors import Actors
    from relay.access.read_rules import ReadRule
    from relay.facts import Facts
    from relay.memory.registry import MemorySystem
    from relay.nostr.event import Event


def schema_objection(
    system: MemorySystem, rule: str, event: Event, facts: Facts, memory: Memory
) -> Reject | None:
    """Why the system's check refuses a record whose required tags are there."""
    match memory.schema_of(system):
        case SchemaMode.STRICT:
            text = system.check(event, _check_options(facts, memory))
        case SchemaMode.LENIENT:
            text = system.check_lenient(event, _check_options(facts, memory))
        case SchemaMode.OFF:
            text = None
        case mode:
            assert_never(mode)
    return None if text is None else Reject(Prefix.INVALID, text, rule)


def _check_options(facts: Facts, memory: Memory) -> CheckOptions:
    is_bounded = facts.origin is not Origin.TRUSTED_IMPORT
    return CheckOptions(
        latest=facts.now + memory.created_at_upper if is_bounded else None,
        ts_is_created_at=memory.ts_rule is TsRule.EQUAL,
        verify_hash=memory.verify_hash,
        max_chars=memory.max_chars,
        max_bytes=memory.max_bytes,
    )


def records_objection(rule: WriteRule, event: Event, facts: Facts, actors: Actors) -> Reject | None:
    """Why the stored events that a record refers to forbid it; None where they were not looked up.

    It is a rule about the author, so it does not apply to trusted imports.
    """
    objection_of = rule.record_rule
    if objection_of is None or facts.records is None or facts.origin.is_trusted:
        return None
    found = objection_of(event, facts.records, partial(actors.is_owner_for, event.pubkey))
    return None if found is None else Reject(*found, rule.place.name)


# -- rules that a setting changes ---------------------------------------------------------------

USER_AND_GROUP: Final = "agents write user and group memory"
VOUCHES: Final = "agents and owners vouch"
AMAN_READ: Final = "aman memory"


def tuned_write(rule: WriteRule, memory: Memory) -> WriteRule:
    """A packaged rule as `[memory]` has it."""
    if rule.place.name == USER_AND_GROUP and memory.owner_annotations:  # S-22
        return replace(rule, writers=frozenset({Who.AGENT, Who.OWNER}))
    if rule.place.name == VOUCHES and memory.vouchers is Vouchers.MEMBERS:
        return replace(rule, writers=frozenset({Who.AGENT, Who.OWNER, Who.MEMBER}))
    return rule


def tuned_read(rule: ReadRule, memory: Memory) -> tuple[ReadRule, ...]:
    """A packaged rule as `[memory]` has it; none where anyone may read."""
    if rule.name == AMAN_READ:  # A-20; private groups stay closed by the rule for groups
        match memory.anonymous_read:
            case AnonymousRead.NONE:
                return (rule,)
            case AnonymousRead.ENCRYPTED:
                return (replace(rule, excepts=(*rule.excepts, Match(tags=(("enc", True),)))),)
            case AnonymousRead.ALL:
                return ()
            case _:
                assert_never(memory.anonymous_read)
    if rule.name == ENVELOPES and memory.envelope_keys:  # D-32
        listed = Match(authors=memory.envelope_keys)
        return (
            replace(rule, excepts=(*rule.excepts, listed)),
            replace(
                rule,
                name=f"{ENVELOPES} of listed keys",
                match=replace(rule.match, authors=memory.envelope_keys),
                readers=frozenset({Who.ANYONE}),
            ),
        )
    return (rule,)
