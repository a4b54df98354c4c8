"""Memory systems in the policy: whose check is asked for a record, and what `[memory]` changes.

The checks themselves are `relay.memory.<system>.checks`.
Order (G-03): required tags (asked by the rule that names the check), `d`, content.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from policies.rules.people import ENVELOPES
from policies.settings import AnonymousRead, SchemaMode, System, TsRule, Vouchers
from relay.access.read_rules import Match
from relay.errors import Prefix
from relay.memory.aman import checks as aman
from relay.memory.anamnesis import checks as anamnesis
from relay.memory.anamnesis.standing import against_patch, against_supersession
from relay.memory.fields import NOT_AN_OBJECT, object_in
from relay.memory.naming import pinned_by
from relay.memory.nmem import checks as nmem
from relay.memory.snowclaw import checks as snowclaw
from relay.memory.terms import Terms
from relay.memory.transcripts import checks as transcripts
from relay.verdict import Origin, Reject, Who

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from policies.settings import Memory
    from policies.write_rule import WriteRule
    from relay.access.actors import Actors
    from relay.access.read_rules import ReadRule
    from relay.nostr.event import Event
    from relay.verdict import Facts

    Check = Callable[[Event, Terms], str | None]
    Owns = Callable[[str | None], bool]


def schema_fault(
    system: System, event: Event, facts: Facts, memory: Memory
) -> tuple[Prefix, str] | None:
    """What is wrong with a record whose required tags are there; None: nothing."""
    check = SCHEMAS[system][memory.schema_of(system)]
    text = check(event, _terms(facts, memory))
    return None if text is None else (Prefix.INVALID, text)


def _terms(facts: Facts, memory: Memory) -> Terms:
    return Terms(
        latest=facts.now + memory.created_at_upper if facts.origin is Origin.WIRE else None,
        ts_is_created_at=memory.ts_rule is TsRule.EQUAL,
        verify_hash=memory.verify_hash,
        max_chars=memory.max_chars,
        max_bytes=memory.max_bytes,
    )


def _nothing(event: Event, terms: Terms) -> str | None:
    return None


def _is_object(event: Event, terms: Terms) -> str | None:
    return None if object_in(event.content) is not None else NOT_AN_OBJECT


SCHEMAS: Final[Mapping[System, Mapping[SchemaMode, Check]]] = {
    system: {SchemaMode.STRICT: strict, SchemaMode.LENIENT: lenient, SchemaMode.OFF: _nothing}
    for system, strict, lenient in (
        (System.AMAN, aman.check, aman.check_lenient),
        (System.TRANSCRIPTS, transcripts.check, _nothing),
        (System.SNOWCLAW, snowclaw.check, snowclaw.check_lenient),
        (System.NMEM, nmem.check, _is_object),
        (System.ANAMNESIS, anamnesis.check, _is_object),
    )
}
"""system → how strict → the check."""


# -- rules that ask what is stored --------------------------------------------------------------

SUPERSEDES: Final = "agents and owners supersede"
PATCHES: Final = "agents and owners change metadata"
PINS: Final = "agents and owners pin"

_MAY_NOT_PIN: Final = Reject(Prefix.RESTRICTED, "only the author or the owner may pin", PINS)


def _superseding(event: Event, facts: Facts, owns: Owns) -> Reject | None:
    return _rejected(SUPERSEDES, against_supersession(event, facts.records or (), owns))


def _patching(event: Event, facts: Facts, owns: Owns) -> Reject | None:
    return _rejected(PATCHES, against_patch(event, facts.records or (), owns))


def _pinning(event: Event, facts: Facts, owns: Owns) -> Reject | None:
    """A pin whose `d` names nothing is left to the check of its form."""
    if pinned_by(event) is None:
        return None
    for target in facts.records or ():
        if target.pubkey == event.pubkey or owns(target.pubkey):
            return None
    return _MAY_NOT_PIN


def _rejected(rule: str, objection: tuple[Prefix, str] | None) -> Reject | None:
    return None if objection is None else Reject(*objection, rule)


_ASKING: Final[Mapping[str, Callable[[Event, Facts, Owns], Reject | None]]] = {
    SUPERSEDES: _superseding,
    PATCHES: _patching,
    PINS: _pinning,
}


def asks_records(rule: str) -> bool:
    """Whether the packaged rule of this name looks at `Facts.records`."""
    return rule in _ASKING


def records_objection(rule: str, event: Event, facts: Facts, actors: Actors) -> Reject | None:
    """What stored records say against a record; nothing where nobody looked them up.

    They are rules about the author, so that trusted imports are not asked.
    """
    asking = _ASKING.get(rule)
    if asking is None or facts.records is None or facts.origin is Origin.TRUSTED_IMPORT:
        return None
    return asking(event, facts, partial(actors.is_owner_for, event.pubkey))


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
    """A packaged rule as `[memory]` has it; no rule at all where everyone reads."""
    if rule.name == AMAN_READ:  # A-20; private groups stay shut, by the rule of groups
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
