"""Passed over: bounds of rows that readers pass over, and that rules cannot tell.

Invariants: pure. The judge asks; owners, agents and imports have no such bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.access.quotas import Account, Per, Rate, Unit, subnet_of
from relay.access.shares import network_of
from relay.errors import Prefix, Reject
from relay.facts import Origin, Who
from relay.groups.context import drawn
from relay.lifecycle.rows import EXPIRY_WINDOW_S, MAX_EXPIRING
from relay.nostr import kinds
from relay.nostr.kinds import KindSet
from relay.write.world import OPERATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.access.quotas import Token
    from relay.facts import Facts
    from relay.groups.context import Ruling
    from relay.write.candidate import Candidate
    from relay.write.world import World

_EXPIRES_WITH_MANY: Final = Reject(
    Prefix.RATE_LIMITED,
    f"expiration: nearly {MAX_EXPIRING:,} events (fewer, for one with many tags) expire within the"
    f" same {EXPIRY_WINDOW_S} seconds, choose another time",
    "expiration",
)
_TAGS_PER_WEIGHT: Final = 10
_MOST_TAGS: Final = 250
"""With more, a few rows of others would be enough for a refusal, which would tell that these
private ones expire then."""
_TOO_MANY_TAGS: Final = Reject(
    Prefix.INVALID, f"expiration: an event that expires has at most {_MOST_TAGS} tags", "expiration"
)
_CLOSINGS: Final = Rate("messages that become private", Per.RELAY, 30_000, 30_000, 3_600)
"""Of all clients together: until a row is moved, readers of its tags pass over it, so 10,000 keep
them waiting for some seconds."""
_CLOSINGS_OF_NETWORK: Final = Rate(
    "messages of a network that become private", Per.NETWORK, 1_400, 1_400, 3_600
)
"""So 16 networks leave a quarter of the hour to others."""
_LARGE_CLOSINGS: Final = Rate(
    "messages of large groups that become private", Per.RELAY, 10_000, 10_000, 3_600
)
"""Of all clients together, for what is more than a network has in an hour …"""
_LARGE_OF_NETWORK: Final = Rate(
    "messages of a network's large groups that become private",
    Per.NETWORK,
    10_000,
    10_000,
    86_400,
)
"""… of which it has so many in a day."""
_MANY_CLOSINGS: Final = Reject(
    Prefix.RATE_LIMITED,
    "very many messages of groups were made private within an hour, on this relay or by your"
    " network; try again later, or ask an owner of the relay",
    _CLOSINGS.name,
)
_EVERYBODY: Final = "all"
_HIDDEN_BYTES: Final = 100_000
"""Of a network in a day, with those of groups that are opened: 1,400 targets, or 300 deletions of
one target each."""
_HIDDEN: Final = Rate(
    "deletions that not everyone may read",
    Per.NETWORK,
    _HIDDEN_BYTES,
    _HIDDEN_BYTES,
    86_400,
    Unit.BYTES,
)
_MANY_HIDDEN: Final = Reject(
    Prefix.RATE_LIMITED,
    f"deletions of private events: at most {_HIDDEN_BYTES:,} bytes a day from one network",
    _HIDDEN.name,
)
_OPENS_HIDDEN: Final = Reject(
    Prefix.RESTRICTED,
    f"the deletions in it, which stay private, have more than {_HIDDEN_BYTES:,} bytes, or with"
    " others of your network today: an owner of the relay opens it",
    _HIDDEN.name,
)


def refusal_to_expire(candidate: Candidate, world: World, facts: Facts) -> Reject | None:
    """The refusal of a row that expires and has too many tags, or expires with nearly MAX_EXPIRING
    others (fewer, if it has many tags). A sweep removes some 30 rows of 600 tags in a second: more
    of these could expire than it can remove."""
    window = candidate.expiry_window
    # A deletion in pieces has begun to delete rows.
    if window is None or world.taken is not None or not _is_bounded(candidate, world, facts):
        return None
    tags = len(candidate.event.tags)
    if tags > _MOST_TAGS:
        return _TOO_MANY_TAGS
    weight = 1 + tags // _TAGS_PER_WEIGHT
    is_crowded = world.found.expiring.get(window, 0) * weight >= _most_expiring(window, world)
    return _EXPIRES_WITH_MANY if is_crowded else None


def _most_expiring(window: int, world: World) -> int:
    """The bound, up to a quarter below MAX_EXPIRING. Nobody knows it, or a refusal would tell how
    many rows expire in the window, private ones too. It changes each minute, or it would tell at
    once when one is added."""
    fewer = MAX_EXPIRING // 8
    of_window = drawn(world.salt, f"expires {window}", fewer)
    of_minute = drawn(world.salt, f"expires {window} {world.now // 60}", fewer)
    return MAX_EXPIRING - of_window - of_minute


def deletions_in(group_id: str) -> Account:
    """The account of the group's deletions: once it is opened, everybody passes over these."""
    return Account(None, KindSet.of(kinds.DELETION), frozenset({group_id}))


def tokens_of_change(
    candidate: Candidate, world: World, facts: Facts, ruling: Ruling
) -> Sequence[Token] | Reject:
    """The tokens to take for an event by which a group becomes one that only its members read, or
    no longer is: then its deletions take as many as if they were written now."""
    group, after = world.groups.get(candidate.group), ruling.groups.get(candidate.group)
    if group is None or after is None or group.only_members_read is after.only_members_read:
        return ()
    if after.only_members_read:
        rows = world.found.group_rows.get(group.id, 0)
        if not (rows and _is_bounded(candidate, world, facts)):
            return ()
        network, all_ = (_network(candidate), rows), (_EVERYBODY, rows)
        few = [(_CLOSINGS_OF_NETWORK, *network), (_CLOSINGS, *all_)]
        many = [(_LARGE_OF_NETWORK, *network), (_LARGE_CLOSINGS, *all_)]
        tokens = _allowed(world, few, _MANY_CLOSINGS)
        return _allowed(world, many, tokens) if isinstance(tokens, Reject) else tokens
    account, usage = deletions_in(group.id), world.found.usage
    size = usage.size_of(account).bytes if account in usage else 0
    is_bounded = size and _bounds_hidden(candidate, world, facts)
    token = _token_of_hidden(candidate, size)
    return _allowed(world, [token], _OPENS_HIDDEN) if is_bounded else ()


def tokens_of_deletion(
    candidate: Candidate, world: World, facts: Facts, group_id: str | None, *, quiet: bool
) -> Sequence[Token] | Reject:
    """The tokens to take for a kind 5 that not everyone may read. Whoever asks for kind 5 passes
    over these rows, except those of groups that only members read.

    A deletion in pieces takes the tokens with its first piece, since a later one may delete what is
    private; with the last piece it gets them back if none did."""
    if not _bounds_hidden(candidate, world, facts):
        return ()
    is_counted = quiet and not _is_private(group_id, world)
    size = len(candidate.event.raw)
    if world.taken is None:
        may_count = is_counted or (world.is_piece and not _is_private(candidate.group, world))
        token = _token_of_hidden(candidate, size)
        return _allowed(world, [token], _MANY_HIDDEN) if may_count else ()
    was_counted = any(rate == _HIDDEN for rate, _, _ in world.taken)
    if world.is_piece or was_counted == is_counted:
        return ()
    return [_token_of_hidden(candidate, size if is_counted else -size)]


def _is_private(group_id: str | None, world: World) -> bool:
    group = world.groups.get(group_id)
    return group is not None and group.only_members_read


def _bounds_hidden(candidate: Candidate, world: World, facts: Facts) -> bool:
    """Whether these deletions have a bound: those of known keys have none where only these may
    write. Others may delete there what they sent to known keys."""
    is_known = Who.KNOWN in facts.who | facts.authenticated_who
    if facts.is_local or (is_known and world.policy.restricted_writes):
        return False
    return _is_bounded(candidate, world, facts)


def _token_of_hidden(candidate: Candidate, size: int) -> Token:
    return _HIDDEN, _network(candidate), size


def _network(candidate: Candidate) -> str:
    return network_of(subnet_of(candidate.sender.address))


def _allowed(world: World, tokens: Sequence[Token], refusal: Reject) -> Sequence[Token] | Reject:
    must_wait = any(
        world.buckets.wait_s(rate, name, world.now, cost) for rate, name, cost in tokens
    )
    return refusal if must_wait else tokens


def _is_bounded(candidate: Candidate, world: World, facts: Facts) -> bool:
    """Whether a client sends it, and neither the author nor a key that is logged in is an owner or
    agent other than by a role."""
    keys = {candidate.event.pubkey, *facts.authenticated}
    is_sent = facts.origin is Origin.WIRE
    return is_sent and all(world.who(key, None).isdisjoint(OPERATE) for key in keys)
