"""Names of people: `[names]` of client.toml, and profiles (kind 0) at the relay.

Invariants: a name of `[names]` wins over profiles, which their authors write; a name that several
keys have is refused; the key of a name is printed in full on stderr before the command acts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NotRequired, TypedDict

import click
import msgspec

from relay.cli.options import KeyType, printable
from relay.client.settings import read_client_file
from relay.errors import ConfigFaults, Invalid, StoreFault, UserError
from relay.files import MAX_KEY_FILE, content_of
from relay.memory.fence import name_in, named
from relay.memory.fields import repaired
from relay.nostr import kinds
from relay.nostr.event import event_from_raw, is_hex64, object_in
from relay.nostr.keys import npub, public_key, read_key_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.nostr.event import Event

    Query = Callable[[Mapping[str, object]], Awaitable[list[Event]]]

RELAY: Final = "the relay"
"""Name of the relay's own key in commands on a data folder."""
MAX_PROFILES: Final = 500
"""Profiles that a command asks for."""
_MAX_LISTS: Final = 100
"""Lists of members that are read to find a name."""
_MAX_CANDIDATES: Final = 10
_MEMBER_LISTS: Final = (kinds.GROUP_ADMINS, kinds.GROUP_MEMBERS, kinds.RELAY_MEMBERS)
_FIELDS: Final = ("name", "display_name")
HexKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Listed(TypedDict):
    """A row of listallowedpubkeys or listbannedpubkeys."""

    pubkey: HexKey
    reason: NotRequired[str | None]
    name: NotRequired[str]


class PublicKey(KeyType):
    """An npub, 64 hex, or a name of `[names]` in client.toml, converted to 64 hex."""

    name = "key"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value.strip().lower().startswith("nsec1"):
            # The secret key is never quoted, in any case.
            self.fail("that is a secret key; give the public one (npub or 64 hex)", param, ctx)
        try:
            return public_key(value)
        except Invalid as invalid:
            return own_key(value) or self.unknown(value, invalid, param, ctx)

    def unknown(
        self, value: str, invalid: Invalid, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The value of a text that is neither a key nor a name of `[names]`; here an error."""
        is_npub = value.strip().lower().startswith("npub1")
        hint = "" if is_npub else ", nor a name of [names] in client.toml"
        self.fail(f"{invalid.text}{hint}", param, ctx)


class Person(PublicKey):
    """A key or a name of `[names]`, converted to 64 hex. Other names stay unchanged, for
    `keys_of`."""

    name = "person"

    def unknown(
        self, value: str, invalid: Invalid, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        if not _folded(value) or value.strip().lower().startswith(("npub1", "nprofile1")):
            return super().unknown(value, invalid, param, ctx)
        return value.strip()


people_argument = click.argument("users", metavar="KEY...", type=Person(), nargs=-1, required=True)


@dataclass(frozen=True, slots=True)
class Names:
    """Names that keys are shown with."""

    own: Mapping[str, str] = field(default_factory=dict)
    """Name in `[names]` → public key."""
    profiles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Public key → what its profile calls it, fit for one line."""

    def of(self, pubkey: str) -> str | None:
        """The name to show; None: no name is known."""
        for name, key in self.own.items():
            if key == pubkey:
                return name
        return next(iter(self.profiles.get(pubkey, ())), None)

    def shown(self, pubkey: str) -> str:
        """`name (npub1abc…)`; the whole npub of a key without a name."""
        name = self.of(pubkey)
        return npub(pubkey) if name is None else named(npub(pubkey), name)

    def listed(self, pubkeys: Iterable[str]) -> str:
        return ", ".join(map(self.shown, pubkeys))

    def keys_of(self, text: str) -> list[str]:
        """The keys that a name may mean."""
        wanted = _folded(text)
        own = [key for name, key in self.own.items() if _folded(name) == wanted]
        return own or [
            pubkey
            for pubkey, names in self.profiles.items()
            if any(_folded(name) == wanted for name in names)
        ]


async def read_names(client: Client, settings: ClientSettings, pubkeys: Iterable[str]) -> Names:
    """The names of these keys; of at most `MAX_PROFILES`."""
    wanted = [key for key in dict.fromkeys(pubkeys) if key not in settings.file.names.values()]
    return Names(settings.file.names, await _profiles(client.query, wanted[:MAX_PROFILES]))


async def names_by(query: Query, pubkeys: Iterable[str]) -> Names:
    """As `read_names`, for commands without settings. `query`: of a client."""
    own = _own_names()
    wanted = [key for key in dict.fromkeys(pubkeys) if key not in own.values()]
    return Names(own, await _profiles(query, wanted[:MAX_PROFILES]))


def banned_names(banned: Iterable[Listed], own: Mapping[str, str]) -> Names:
    """Of the rows of listbannedpubkeys: profiles of banned keys are hidden, this relay names them
    to owners."""
    names = {each["pubkey"]: name_in(each.get("name", "")) for each in banned}
    return Names(own, {key: (name,) for key, name in names.items() if name})


async def keys_of(
    client: Client,
    settings: ClientSettings,
    people: Sequence[str],
    group: str | None = None,
    near: Sequence[str] = (),
) -> tuple[str, ...]:
    """The keys of what `Person` let through, each once.

    Names are looked up among the keys `near`, members of `group`, of the relay's groups that this
    key may read and of the relay, and in the newest profiles. Raises UserError naming the
    candidates.
    """
    if all(map(is_hex64, people)):
        return tuple(dict.fromkeys(people))
    known = list(dict.fromkeys([*near, *await _members(client, group)]))
    profiles = await _profiles(client.query, known[:MAX_PROFILES])
    newest = _names_in(await client.query({"kinds": [kinds.PROFILE], "limit": MAX_PROFILES}))
    return keys_in(Names(settings.file.names, newest | profiles), people)


def keys_in(names: Names, people: Sequence[str]) -> tuple[str, ...]:
    """As `keys_of`, among these names alone."""
    return tuple(dict.fromkeys(key if is_hex64(key) else _key_of(key, names) for key in people))


def _key_of(text: str, names: Names) -> str:
    """Raises UserError."""
    keys = names.keys_of(text)
    if len(keys) == 1:
        say_whose(text, keys[0])
        return keys[0]
    quoted = repr(printable(text))
    if not keys:
        raise UserError(
            f"nobody is named {quoted} here: give an npub or 64 hex, or put the name under [names]"
            " into ~/.config/rookery/client.toml"
        )
    shown = "\n".join(f"  {npub(key)}  {names.of(key)}" for key in sorted(keys)[:_MAX_CANDIDATES])
    more = f"\n  and {len(keys) - _MAX_CANDIDATES} more" if len(keys) > _MAX_CANDIDATES else ""
    raise UserError(f"{len(keys)} keys are named {quoted}; give the npub of one:\n{shown}{more}")


def own_key(text: str) -> str | None:
    """The key that `[names]` of client.toml has for a name; said on stderr. Raises UserError."""
    names = Names(read_client_file(Path.home()).names)
    return _key_of(text, names) if names.keys_of(text) else None


def _own_names() -> Mapping[str, str]:
    """The names of `[names]`; none if client.toml has faults."""
    try:
        return read_client_file(Path.home()).names
    except ConfigFaults:
        return {}


def names_in_folder(folder: Path, pubkeys: Iterable[str]) -> Names:
    """`[names]`, the relay's own key, and profiles in a data folder; of at most `MAX_PROFILES`.

    What cannot be read gives no names.
    """
    from relay.storage.sqlite.beside_relay import profiles_in

    own = _names_of_folder(folder)
    wanted = [key for key in dict.fromkeys(pubkeys) if key not in own.values()][:MAX_PROFILES]
    with suppress(StoreFault):
        found = profiles_in(folder / "rookery.db", wanted)
        return Names(own, _names_in(map(event_from_raw, found)))
    return Names(own)


def key_in_folder(folder: Path, person: str) -> str:
    """The key of what `Person` let through: by `[names]`, or by one of the newest profiles in a
    data folder. Raises UserError."""
    from relay.storage.sqlite.beside_relay import newest_profiles

    found: list[bytes] = []
    with suppress(StoreFault):
        found = newest_profiles(folder / "rookery.db", MAX_PROFILES)
    names = Names(_names_of_folder(folder), _names_in(map(event_from_raw, found)))
    return keys_in(names, [person])[0]


def _names_of_folder(folder: Path) -> dict[str, str]:
    """`[names]` and the relay's own key."""
    own = dict(_own_names())
    with suppress(OSError, UnicodeDecodeError, UserError):
        key = folder / "relay.key"
        text = content_of(key, MAX_KEY_FILE).decode("ascii")
        own.setdefault(RELAY, read_key_file(text, str(key)).pubkey)
    return own


def say_whose(text: str, pubkey: str) -> None:
    """Print the key that a name stands for."""
    click.echo(f"{printable(text)} is {npub(pubkey)}", err=True)


async def _members(client: Client, group: str | None) -> list[str]:
    """Keys in the lists of members that may be read, those of `group` first."""
    filters: list[dict[str, object]] = [{"kinds": list(_MEMBER_LISTS), "limit": _MAX_LISTS}]
    if group is not None:
        filters.insert(0, {"kinds": list(_MEMBER_LISTS), "#d": [group], "limit": 4})
    found: dict[str, None] = {}
    for filter_ in filters:
        for event in await client.query(filter_):
            for tag in event.tags:
                if len(tag) > 1 and tag[0] in ("p", "member") and is_hex64(tag[1]):
                    found[tag[1]] = None
    return list(found)


async def profile_names(query: Query, authors: Collection[str]) -> dict[str, str]:
    """The names of `names_by`, without the keys that have none."""
    names = await names_by(query, sorted(authors))
    return {author: name for author in authors if (name := names.of(author)) is not None}


async def _profiles(query: Query, authors: Collection[str]) -> dict[str, tuple[str, ...]]:
    if not authors:
        return {}
    return _names_in(await query({"kinds": [kinds.PROFILE], "authors": sorted(authors)}))


def _names_in(profiles: Iterable[Event]) -> dict[str, tuple[str, ...]]:
    """Author → names in the newest version of their profile."""
    found: dict[str, tuple[str, ...]] = {}
    for event in sorted(profiles, key=lambda event: event.created_at):
        fields = object_in(event.content) or {}
        texts = [fields.get(each) for each in _FIELDS]
        names = [name_in(repaired(text)) for text in texts if isinstance(text, str)]
        found[event.pubkey] = tuple(dict.fromkeys(filter(None, names)))
    return {pubkey: names for pubkey, names in found.items() if names}


def _folded(text: str) -> str:
    return name_in(text).casefold()
