"""People: keys that the reader meets in groups, and one of them; for owners bans and invites."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from relay.access.management import ListName
from relay.access.membership import Members, claim_id, claims_of, invited_by, joined_at
from relay.console.ask import NotFoundError, shown
from relay.console.page import Found, Page
from relay.console.pages.groups import of_relay, tree_of, users_in
from relay.console.tables import Column, Holds, Rows, in_pieces
from relay.errors import Invalid
from relay.memory.fields import repaired
from relay.nostr import kinds
from relay.nostr.event import object_in
from relay.nostr.filters import Filter
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.console.ask import Ask
    from relay.nostr.event import Event

_COLUMNS: Final = (
    Column("pubkey", "Person", Holds.PERSON),
    Column("is", "Role", Holds.WORDS),
    Column("groups", "Groups", Holds.WORDS),
    Column("since", "Member since", Holds.TIME),
    Column("npub", "Key", Holds.CODE),
)
_NOTED: Final = 30
_FIELDS: Final = ("name", "display_name", "about", "nip05", "website", "lud16")


async def _people(ask: Ask) -> Found:
    lists = await ask.events_or_none(of_relay(ask, kinds.GROUP_ADMINS, kinds.GROUP_MEMBERS))
    listed = await ask.events_or_none(
        Filter(
            kinds=frozenset({kinds.RELAY_MEMBERS, kinds.MEMBER_ADDED}),
            authors=frozenset({ask.services.relay_pubkey}),
        )
    )
    groups, roles = await _memberships(lists)
    since: dict[str, int] = {}
    for event in listed:
        if event.kind == kinds.MEMBER_ADDED:
            for key in await users_in(event):
                since.setdefault(key, event.created_at)
    members = {
        tag[1]
        for event in listed
        if event.kind == kinds.RELAY_MEMBERS
        for tag in event.tags
        if len(tag) > 1 and tag[0] in ("member", "p")
    }
    if ask.owner_view:  # the relay's notices are removed after some time
        for key in members:
            joined = joined_at(key, ask.services.state.management)
            if joined is not None:
                since.setdefault(key, joined)
    actors = ask.services.state.actors
    known = {
        "owner": actors.owners if ask.owner_view else frozenset[str](),
        "agent": actors.agents if ask.owner_view else frozenset[str](),
        "banned": actors.banned if ask.owner_view else frozenset[str](),
    }
    brought = invited_by(ask.services.state.management) if ask.owner_view else {}
    keys = [*groups, *members, *since, *frozenset[str]().union(*known.values()), *brought.values()]
    people = await ask.people(keys)
    rows: list[dict[str, object]] = [
        {
            "pubkey": key,
            "is": [
                *dict.fromkeys(
                    [
                        *(word for word, having in known.items() if key in having),
                        *(["member of the relay"] if key in members else []),
                        *roles.get(key, ()),
                    ]
                )
            ],
            "groups": sorted(groups.get(key, [])),
            "since": since.get(key),
            "npub": people[key]["npub"],
        }
        async for key in in_pieces(people)
    ]
    data: dict[str, object] = {
        "owner": None if ask.owner_view is None else _for_owner(ask),
        "tree": tree_of([*sorted(actors.owners), *brought], brought) if brought else [],
        "may_invite": _may_invite(ask),
        "invite": await _own_invite(ask) if ask.query.get("invite") else "",
    }
    return Found(data, people, Rows(_COLUMNS, rows, people))


def _may_invite(ask: Ask) -> bool:
    state = ask.services.state
    members = Members(state.management, state.actors, state.groups, state.policy.members)
    return ask.pubkey is not None and members.may_invite(ask.pubkey)


async def _own_invite(ask: Ask) -> str:
    """The code that a REQ of this key for a 28935 is answered with (NIP-43), or nothing."""
    found = await ask.events_or_none(Filter(kinds=frozenset({kinds.RELAY_INVITE})))
    return next((event.tag("claim") or "" for event in found), "")


async def _memberships(
    lists: Sequence[Event],
) -> tuple[dict[str, set[str]], dict[str, dict[str, None]]]:
    """pubkey → groups, and → roles in any of them, in their order."""
    groups: dict[str, set[str]] = defaultdict(set)
    roles: dict[str, dict[str, None]] = defaultdict(dict)
    async for event in in_pieces(lists):
        group = event.d
        async for key, held in in_pieces((await users_in(event)).items()):
            groups[key].add(group)
            roles[key].update(dict.fromkeys(held))
    return groups, roles


def _for_owner(ask: Ask) -> dict[str, object]:
    management = ask.services.state.management
    return {
        "banned": [
            {"pubkey": key, "reason": reason}
            for key, reason in management.of(ListName.BANNED_KEYS).items()
        ],
        "allowed": [
            {"pubkey": key, "reason": reason}
            for key, reason in management.of(ListName.ALLOWED_KEYS).items()
        ],
        "invites": [
            {
                "id": claim_id(code),
                "code": code,
                "by": claim.by,
                "until": claim.until,
                "left": claim.left,
            }
            for code, claim in claims_of(management)
            if claim.is_open(ask.now)
        ],
    }


def _ban(ask: Ask, key: str) -> dict[str, bool]:
    """For owners: whether the key is banned, and what they may do about it."""
    if ask.owner_view is None:
        return dict.fromkeys(("is_banned", "may_ban", "may_lift"), False)
    actors, management = ask.services.state.actors, ask.services.state.management
    is_banned = key in actors.banned
    may_ban = not is_banned and key not in actors.owners | {actors.relay}
    may_lift = is_banned and key in management.of(ListName.BANNED_KEYS)
    return {"is_banned": is_banned, "may_ban": may_ban, "may_lift": may_lift}


async def _person(ask: Ask) -> Found:
    try:
        key = public_key(ask.query.get("key", ""))
    except Invalid:
        raise NotFoundError("This is no public key: give an npub or 64 hex.") from None
    wanted = of_relay(ask, kinds.GROUP_ADMINS, kinds.GROUP_MEMBERS)
    lists = await ask.events_or_none(replace(wanted, tags=(("p", frozenset({key})),)))
    groups, roles = await _memberships(lists)
    profiles = await ask.events_or_none(
        Filter(kinds=frozenset({kinds.PROFILE}), authors=frozenset({key}), limit=1)
    )
    wrote = await ask.events_or_none(Filter(authors=frozenset({key}), limit=_NOTED))
    profile = (object_in(profiles[0].content) or {}) if profiles else {}
    people = await ask.people([key])
    data: dict[str, object] = {
        "key": key,
        "npub": people[key]["npub"],
        "profile": {
            name: repaired(text)
            for name in _FIELDS
            if isinstance(text := profile.get(name), str) and text
        },
        "groups": sorted(groups.get(key, [])),
        "roles": [*roles.get(key, ())],
        "wrote": [shown(event) for event in wrote],
        **_ban(ask, key),
        "is_me": key == ask.pubkey,
    }
    return Found(data, people)


PAGES: Final = (
    Page(
        "people",
        "People",
        "Keys in the lists of groups and of the relay that the reader may read.",
        _people,
        params={"invite": "1: an invite code of the reader's own, if the relay gives one"},
        has_table=True,
        command="rookery member list",
    ),
    Page(
        "person",
        "Person",
        "One key: profile, groups, and its latest events that the reader may read.",
        _person,
        params={"key": "npub or 64 hex"},
        in_menu=False,
    ),
)
