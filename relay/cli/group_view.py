"""A NIP-29 group by its 39000–39003, as `rookery group` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from relay.cli.options import print_json, printable
from relay.client import ClientError, PublishRefused
from relay.client.information import GROUPS, lists_nip
from relay.errors import Invalid, Prefix, UserError
from relay.nostr import kinds
from relay.nostr.event import is_hex64, made_from
from relay.nostr.keys import npub
from relay.nostr.nip19 import AddressPointer, decode_pointer, encode_pointer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from relay.cli.names import Names
    from relay.client import Client
    from relay.nostr.event import Event

FLAGS: Final[tuple[str, ...]] = ("private", "restricted", "closed", "hidden")
DEFAULT_ON: Final = frozenset(FLAGS[:3])
"""Flags that are on by default when others are named: turning one off turns no other off."""
TEXTS: Final = ("name", "about", "picture")
_SHOWN: Final = (
    kinds.GROUP_METADATA,
    kinds.GROUP_ADMINS,
    kinds.GROUP_MEMBERS,
    kinds.GROUP_ROLES,
)
AGENT_ROLE: Final = "agent"
"""Role that permits writing memory in the group unless `[actors] agent_role` names another; 39003
does not list it."""

_MAX_RACES: Final = 100
"""Times that an edit is made again, because others change the group."""

group_argument = click.argument("group_id", metavar="ID")


@dataclass(frozen=True, slots=True)
class GroupView:
    """The relay's events about one group."""

    id: str
    texts: Mapping[str, str]
    flags: frozenset[str]
    supported_kinds: tuple[str, ...] | None
    with_role: Mapping[str, tuple[str, ...]]
    """pubkey → roles, of 39001."""
    members: tuple[str, ...] | None
    """None: not readable with this key."""
    roles: tuple[str, ...]
    metadata: Event | None = None
    """The 39000."""

    @property
    def people(self) -> list[str]:
        """Everybody in the lists, those with a role first."""
        return list(dict.fromkeys((*self.with_role, *(self.members or ()))))

    @property
    def admins(self) -> dict[str, tuple[str, ...]]:
        """Members with a role other than that of agents, with all their roles."""
        return {user: held for user, held in self.with_role.items() if set(held) != {AGENT_ROLE}}

    @property
    def agents(self) -> list[str]:
        return [user for user, held in self.with_role.items() if AGENT_ROLE in held]

    def as_json(self, names: Names) -> dict[str, object]:
        return {
            "id": self.id,
            **{name: self.texts.get(name) for name in TEXTS},
            "flags": [flag for flag in FLAGS if flag in self.flags],
            "supported_kinds": self.supported_kinds,
            "admins": self.admins,
            "agents": self.agents,
            "members": self.members,
            "roles": self.roles,
            "names": {user: name for user in self.people if (name := names.of(user)) is not None},
        }


async def view_of_group(client: Client, group_id: str) -> GroupView:
    views = await views_of_groups(client, group_id)
    return views[0] if views else GroupView(group_id, {}, frozenset(), None, {}, None, ())


async def views_of_groups(client: Client, group_id: str | None = None) -> list[GroupView]:
    """Groups with a readable 39000, by id; `group_id`: only this one."""
    filter_: dict[str, object] = {"kinds": list(_SHOWN)}
    if group_id is not None:
        filter_["#d"] = [group_id]
    if (relay_key := await relay_key_of(client)) is not None:
        # Signed by others, these kinds describe no group of this relay (N29-60).
        filter_["authors"] = [relay_key]
    newest: dict[str, dict[int, Event]] = {}
    async for event in client.query_all(filter_):
        newest.setdefault(event.d, {}).setdefault(event.kind, event)
    return [
        _view_of(id_, events)
        for id_, events in sorted(newest.items())
        if kinds.GROUP_METADATA in events
    ]


def _view_of(group_id: str, events: Mapping[int, Event]) -> GroupView:
    metadata = events[kinds.GROUP_METADATA]
    admins, members, roles = (events.get(kind) for kind in _SHOWN[1:])
    supported = next((tag[1:] for tag in metadata.tags if tag[:1] == ["supported_kinds"]), None)
    return GroupView(
        id=group_id,
        texts={name: text for name in TEXTS if (text := metadata.tag(name)) is not None},
        flags=frozenset(flag for flag in FLAGS if metadata.has_tag(flag)),
        supported_kinds=None if supported is None else tuple(supported),
        with_role={}
        if admins is None
        else {tag[1]: tuple(tag[2:]) for tag in admins.tags if _is_user(tag)},
        members=None if members is None else tuple(tag[1] for tag in members.tags if _is_user(tag)),
        roles=() if roles is None else tuple(roles.tag_values("role")),
        metadata=metadata,
    )


def _is_user(tag: Sequence[str]) -> bool:
    return len(tag) > 1 and tag[0] == "p" and is_hex64(tag[1])


async def is_seen(client: Client, group_id: str) -> bool:
    """Whether this key may see the group; True for relays that do not list NIP-29."""
    if not lists_nip(await client.information_or_empty(), GROUPS):
        return True
    return bool(await views_of_groups(client, group_id))


def no_group(group_id: str) -> UserError:
    """The error for a group that this key does not see."""
    named = repr(printable(group_id))
    return UserError(f"no group {named} is visible to this key; `rookery group list` lists groups")


async def relay_key_of(client: Client) -> str | None:
    """The relay's own key (N11-07), if known."""
    try:
        relay_key = (await client.information()).get("self")
    except ClientError:
        return None
    return relay_key if isinstance(relay_key, str) and is_hex64(relay_key) else None


def naddr_of(group_id: str, relay_key: str, url: str) -> str:
    """NIP-19 naddr of a group: its 39000 and the relay (N19-02)."""
    return encode_pointer(AddressPointer(group_id, relay_key, kinds.GROUP_METADATA, (url,)))


async def send_edit(
    client: Client, kind: int, made: Callable[[], Awaitable[tuple[Event | None, list[list[str]]]]]
) -> None:
    """Send what replaces all of a 39xxx, made again if that was changed meanwhile. `made`: gives
    the 39xxx (None: none is stored) and the tags of what replaces it. Raises PublishRefused."""
    before: list[str] | None = None
    for left in range(_MAX_RACES, -1, -1):
        edited, tags = await made()
        base = made_from(edited)
        try:
            await client.send(kind, "", [*tags, base])
            return
        except PublishRefused as refused:
            if refused.prefix != Prefix.DUPLICATE or base == before or not left:
                raise
        before = base


def report(event: Event, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"id": event.id, "kind": event.kind, "group": event.tag("h")})
    else:
        click.echo(text)


def npubs_of(users: Iterable[str]) -> str:
    return ", ".join(map(npub, users))


def flags_in_words(view: GroupView) -> str:
    return ", ".join(flag for flag in FLAGS if flag in view.flags) or "open to all"


def group_in(text: str) -> tuple[str, str | None, tuple[str, ...]]:
    """The id, the invite code and the relays in an id, an naddr of a 39000, or an naddr with
    `?invite=CODE`.

    Raises click.BadParameter.
    """
    if not text.startswith(("naddr1", "nostr:naddr1")):
        return text, None, ()
    address, _, query = text.removeprefix("nostr:").partition("?")
    try:
        pointer = decode_pointer(address)
    except Invalid as invalid:
        raise click.BadParameter(invalid.text, param_hint="ID") from None
    if not isinstance(pointer, AddressPointer) or pointer.kind != kinds.GROUP_METADATA:
        raise click.BadParameter("the naddr names no group (kind 39000)", param_hint="ID")
    code = query.removeprefix("invite=") if query.startswith("invite=") else None
    return pointer.d, code, pointer.relays
