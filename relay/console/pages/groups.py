"""Groups: those that the reader may see; members, requests, invites and messages of one.

Everything is read from events: 39000–39003 of the relay, 9009, 9021, and what was said.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from relay.console.ask import NotFoundError, shown
from relay.console.page import Found, Page
from relay.console.tables import Column, Holds, Rows, in_pieces
from relay.groups.actions import PIN_TAGS
from relay.nostr import kinds
from relay.nostr.event import is_hex64, made_from
from relay.nostr.filters import Filter
from relay.nostr.nip19 import AddressPointer, encode_pointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.console.ask import Ask
    from relay.nostr.event import Event

    _Users = Mapping[str, Mapping[str, list[str]]]
    """Id of an event → `users_in`."""

NO_GROUP: Final = "There is no such group, or you may not see it."
_FLAGS: Final = ("private", "hidden", "restricted", "closed")
_LISTS: Final = (kinds.GROUP_ADMINS, kinds.GROUP_MEMBERS)
_SAID: Final = frozenset(
    {kinds.CHAT, kinds.THREAD_REPLY, kinds.THREAD, kinds.THREAD_COMMENT, kinds.COMMENT, kinds.NOTE}
)
_MESSAGES: Final = 50
_RECORDS: Final = 1000
_MODERATED: Final = 20
_MAX_TREE: Final = 500
_MAX_DEPTH: Final = 8
_MAX_GROUPS: Final = 5000
_MAX_ID: Final = 256
_COUNTED: Final = 25
"""Groups whose lists are asked for together."""
_MEMBERS: Final = (
    Column("pubkey", "Member", Holds.PERSON),
    Column("roles", "Roles", Holds.WORDS),
    Column("npub", "Key", Holds.CODE),
)
_COLUMNS: Final = (
    Column("id", "Group", Holds.GROUP),
    Column("about", "About"),
    Column("flags", "Flags", Holds.WORDS),
    Column("members", "Members", Holds.NUMBER),
    Column("admins", "Admins", Holds.NUMBER),
    Column("parent", "Part of", Holds.GROUP),
    Column("changed_at", "Changed", Holds.TIME),
)


def of_relay(ask: Ask, *wanted: int, group_ids: Iterable[str] | None = None) -> Filter:
    """State of groups signed by this relay; signed by others these kinds have no meaning
    (N29-60)."""
    tags = () if group_ids is None else (("d", frozenset(group_ids)),)
    return Filter(
        kinds=frozenset(wanted),
        authors=frozenset({ask.services.relay_pubkey}),
        tags=tags,
        limit=_MAX_GROUPS * len(wanted),
    )


def _newest(events: Iterable[Event]) -> Mapping[str, Mapping[int, Event]]:
    """Group → kind → its newest event."""
    found: dict[str, dict[int, Event]] = defaultdict(dict)
    for event in events:
        found[event.d].setdefault(event.kind, event)
    return found


def _group_row(group_id: str, metadata: Event) -> dict[str, object]:
    return {
        "id": group_id,
        "name": metadata.tag("name") or group_id,
        "about": metadata.tag("about") or "",
        "flags": [flag for flag in _FLAGS if metadata.has_tag(flag)],
        "members": None,
        "admins": None,
        "parent": metadata.tag("parent") or "",
        "changed_at": metadata.created_at,
    }


async def _counts(state: Mapping[int, Event]) -> dict[str, int | None]:
    """None: the reader may not read the list."""
    lists = {"members": state.get(kinds.GROUP_MEMBERS), "admins": state.get(kinds.GROUP_ADMINS)}
    return {
        name: None if each is None else len(await users_in(each)) for name, each in lists.items()
    }


async def users_in(event: Event | None) -> dict[str, list[str]]:
    """pubkey → roles."""
    return {
        tag[1]: list(tag[2:])
        async for tag in in_pieces(() if event is None else event.tags)
        if len(tag) > 1 and tag[0] == "p" and is_hex64(tag[1])
    }


def may_delete(me: str | None, author: str, roles: Mapping[str, Sequence[str]]) -> bool:
    """Whether a 9005 of the reader deletes what the author wrote in the group (N29-112); `roles`:
    of its 39001."""
    mine = roles.get(me or "", ())
    return "admin" in mine or ("moderator" in mine and (author == me or not roles.get(author)))


async def listed_groups(ask: Ask) -> list[dict[str, object]]:
    """The groups that the reader may see, by name; without the numbers of members and admins."""
    events = await ask.events_or_none(of_relay(ask, kinds.GROUP_METADATA))
    rows = [_group_row(event.d, event) async for event in in_pieces(events)]
    return sorted(rows, key=lambda row: (str(row["name"]).casefold(), str(row["id"])))


async def _groups(ask: Ask) -> Found:
    async def count(rows: Sequence[dict[str, object]]) -> None:
        """Of those rows only: the lists of all groups of a large relay are tens of megabytes."""
        for first in range(0, len(rows), _COUNTED):
            some = rows[first : first + _COUNTED]
            wanted = of_relay(ask, *_LISTS, group_ids=[str(row["id"]) for row in some])
            lists = _newest(await ask.events_or_none(wanted))
            for row in some:
                row |= await _counts(lists.get(str(row["id"]), {}))
            await asyncio.sleep(0)

    rows = await listed_groups(ask)
    return Found({}, {}, Rows(_COLUMNS, rows, fill=count, filled=frozenset({"members", "admins"})))


async def _state_of(ask: Ask, group_id: str) -> dict[int, Event]:
    """Kind → event. In a query each: a list of thousands is all that one may read."""
    found: dict[int, Event] = {}
    for kind in kinds.GROUP_STATE:
        for event in await ask.events_or_none(of_relay(ask, kind, group_ids=[group_id])):
            found.setdefault(kind, event)
    return found


async def _group(ask: Ask) -> Found:
    group_id = ask.query.get("id", "")
    if not group_id or len(group_id) > _MAX_ID:
        raise NotFoundError(NO_GROUP)
    state = await _state_of(ask, group_id)
    metadata = state.get(kinds.GROUP_METADATA)
    if metadata is None:
        raise NotFoundError(NO_GROUP)
    here = (("h", frozenset({group_id})),)
    said = await ask.events_or_none(Filter(kinds=_SAID, tags=here, limit=_MESSAGES))
    # One walk over the rows of the group, in which these kinds are few.
    records = await ask.events_or_none(
        Filter(kinds=frozenset(kinds.GROUP_RECORDS), tags=here, limit=_RECORDS)
    )
    asked = [event for event in records if event.kind == kinds.JOIN_REQUEST]
    users = {
        event.id: await users_in(event)
        async for event in in_pieces(records)
        if event.kind in kinds.MODERATION
    }
    invites = [event for event in records if event.kind == kinds.CREATE_INVITE]
    moderated = [event for event in records if event.kind in kinds.MODERATION][:_MODERATED]
    admins = await users_in(state.get(kinds.GROUP_ADMINS))
    members = {**await users_in(state.get(kinds.GROUP_MEMBERS)), **admins}
    my_roles = admins.get(ask.pubkey or "", [])
    pointer = AddressPointer(group_id, ask.services.relay_pubkey, kinds.GROUP_METADATA, (ask.url,))
    may_moderate = bool({"admin", "moderator"}.intersection(my_roles))
    brought = await brought_by(records, users, ask.services.relay_pubkey) if may_moderate else {}
    data: dict[str, object] = {
        "group": {
            **_group_row(group_id, metadata),
            **await _counts(state),
            "children": [*metadata.tag_values("child")],
            "supported_kinds": _supported(metadata),
            "naddr": encode_pointer(pointer),
            "lists_are_readable": kinds.GROUP_MEMBERS in state,
        },
        "roles": [
            {"name": tag[1], "about": tag[2] if len(tag) > 2 else ""}
            for tag in (state[kinds.GROUP_ROLES].tags if kinds.GROUP_ROLES in state else [])
            if len(tag) > 1 and tag[0] == "role"
        ],
        "messages": [
            {**shown(event), "may_delete": may_delete(ask.pubkey, event.pubkey, admins)}
            for event in reversed(said)
        ],
        "pins": _pins(state.get(kinds.GROUP_PINS)),
        "pins_made_from": made_from(state.get(kinds.GROUP_PINS)),
        "requests": _requests(asked, members, records, users),
        "invites": await _invites(invites, ask.pubkey, admins),
        "moderation": [
            {**shown(event), "what": _moderation(event, users[event.id])} for event in moderated
        ],
        "may_moderate": may_moderate,
        "tree": tree_of(members, brought) if brought else [],
        "is_admin": "admin" in my_roles,
        "is_member": ask.pubkey in members,
    }
    keys = [
        *members,
        *(by for key, by in brought.items() if key in members),
        *(event.pubkey for event in (*said, *asked, *invites, *moderated)),
        *(key for event in moderated for key in users[event.id]),
    ]
    people = await ask.people(keys)
    listed = [(key, roles) for key, roles in members.items() if key in people]
    rows: list[dict[str, object]] = [
        {"pubkey": key, "roles": roles, "npub": people[key]["npub"]}
        for key, roles in sorted(listed, key=lambda each: not each[1])
    ]
    return Found(data, people, Rows(_MEMBERS, rows, people))


def _supported(metadata: Event) -> list[str] | None:
    """Kinds that the group takes; None: all."""
    found = next((tag for tag in metadata.tags if tag[:1] == ["supported_kinds"]), None)
    return None if found is None else list(found[1:])


def _requests(
    asked: Sequence[Event], members: Mapping[str, object], records: Sequence[Event], users: _Users
) -> list[dict[str, object]]:
    """The newest 9021 of each key that is not a member and has had no answer since."""
    newest: dict[str, Event] = {}
    for event in asked:
        newest.setdefault(event.pubkey, event)
    for event in records:
        if event.kind in (kinds.PUT_USER, kinds.REMOVE_USER):
            for key in newest.keys() & users[event.id].keys():
                if newest[key].created_at <= event.created_at:
                    del newest[key]
    return [shown(event) for key, event in newest.items() if key not in members]


async def _invites(
    events: Sequence[Event], me: str | None, admins: Mapping[str, Sequence[str]]
) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for event in events:
        # Once for all its codes, because each look-up of a tag scans all of them.
        of_all = {
            "id": event.id,
            "by": event.pubkey,
            "made_at": event.created_at,
            "expires_at": _number(event.tag("expiration")),
            "reusable": event.has_tag("reusable"),
            "may_revoke": may_delete(me, event.pubkey, admins),
        }
        codes = in_pieces(event.tag_values("code"))
        found += [{**of_all, "code": code} async for code in codes]
    return found


async def brought_by(records: Iterable[Event], users: _Users, relay: str) -> dict[str, str]:
    """Key → the key that added it to the group, or made the invite that it joined with."""
    oldest_first = sorted(records, key=lambda event: (event.created_at, event.kind))
    makers: dict[str, str] = {}
    async for event in in_pieces(oldest_first):
        if event.kind == kinds.CREATE_INVITE:
            makers |= dict.fromkeys(event.tag_values("code"), event.pubkey)
    found: dict[str, str] = {}
    async for event in in_pieces(oldest_first):
        if event.kind == kinds.REMOVE_USER:
            for key in users[event.id]:
                found.pop(key, None)
        elif event.kind == kinds.PUT_USER and event.pubkey != relay:
            for key in users[event.id]:
                if key != event.pubkey:
                    found.setdefault(key, event.pubkey)
        elif event.kind == kinds.JOIN_REQUEST and (code := event.tag("code")) in makers:
            found.setdefault(event.pubkey, makers[code or ""])
    return found


def tree_of(members: Iterable[str], brought: Mapping[str, str]) -> list[dict[str, object]]:
    """`pubkey`, `by` and `children`; the roots are keys that no member brought, and those that are
    deeper than `_MAX_DEPTH`."""
    left = [*members][:_MAX_TREE]
    nodes: dict[str, dict[str, object]] = {}
    depth: dict[str, int] = {}
    below: dict[str, list[str]] = defaultdict(list)
    for key in left:
        below[brought.get(key, "")].append(key)
        nodes[key] = {"pubkey": key, "by": brought.get(key, ""), "children": []}
    roots: list[dict[str, object]] = []
    # Last the keys in a circle that added each other.
    for first in [*(key for key in left if brought.get(key, "") not in nodes), *left]:
        waiting = [first]
        while waiting:
            key = waiting.pop()
            if key in depth:
                continue
            by = brought.get(key, "")
            depth[key] = depth.get(by, _MAX_DEPTH) + 1
            children = nodes[by]["children"] if by in depth and by in nodes else None
            if isinstance(children, list) and depth[key] <= _MAX_DEPTH:
                children.append(nodes[key])
            else:
                depth[key] = 1
                roots.append(nodes[key])
            waiting += reversed(below[key])
    return roots


def _pins(event: Event | None) -> list[list[str]]:
    """Tags, as an event that changes the pins repeats them."""
    tags = () if event is None else event.tags
    return [list(tag) for tag in tags if len(tag) > 1 and tag[0] in PIN_TAGS]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


_WORDS: Final = {
    kinds.PUT_USER: "added or changed",
    kinds.REMOVE_USER: "removed",
    kinds.EDIT_METADATA: "edited the group",
    kinds.DELETE_EVENT: "deleted an event",
    kinds.CREATE_GROUP: "created the group",
    kinds.DELETE_GROUP: "deleted the group",
    kinds.CREATE_INVITE: "created an invite",
    kinds.UPDATE_PINS: "changed the pins",
}


def _moderation(event: Event, users: Iterable[str]) -> dict[str, object]:
    return {
        "text": _WORDS.get(event.kind, f"kind {event.kind}"),
        "people": [*users],
        "events": [value for value in event.tag_values("e") if is_hex64(value)],
    }


PAGES: Final = (
    Page(
        "groups",
        "Groups",
        "The groups that the reader may see.",
        _groups,
        has_table=True,
        command="rookery group list",
    ),
    Page(
        "group",
        "Group",
        "One group: members, requests, invites, moderation and the last messages.",
        _group,
        params={"id": "id of the group"},
        has_table=True,
        in_menu=False,
        command="rookery group show",
    ),
)
