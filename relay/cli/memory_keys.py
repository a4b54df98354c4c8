"""KEY of the memory commands: a user, a group, or a word of the agent's own memory; its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from relay.cli.user_keys import NOT_PUBLIC, user_in
from relay.errors import Invalid
from relay.memory.snowclaw.keys import (
    AGENT,
    COLLECTIVE,
    CONFIG,
    MEMORY,
    OfUser,
    agent_d,
    category_and_key,
    group_d,
    hex_of,
    is_key,
    is_same_user,
    memory_scope,
    private_d,
    user_ds,
)
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.client import Client
    from relay.nostr.event import Event


@dataclass(frozen=True, slots=True)
class Key:
    """The KEY argument of a command."""

    text: str
    """As typed."""
    user: str | None = None
    """A user's key: 64, 32 or 16 hex."""
    group: str | None = None
    plain: str | None = None
    """`<category>:<key>` of an agent's own memory."""

    @property
    def private_ds(self) -> list[str]:
        """`d` of an owner's notes that no group reads."""
        return [] if self.user is None else [private_d(OfUser(self.user[:32]))]

    @property
    def ds(self) -> list[str]:
        """`d` tags of its records; one that ends in `:` is a prefix (G-09)."""
        if self.user is not None:
            return (
                user_ds(self.user)
                if len(self.user) == 64
                else [
                    f"{MEMORY}npub:",
                    f"{MEMORY}npub:{self.user}",
                    f"{MEMORY}npub:{self.user[:16]}",
                ]
            )
        if self.group is not None:
            return [group_d(self.group)]
        return [f"{AGENT}{self.plain}", f"{COLLECTIVE}{self.text.removeprefix(COLLECTIVE)}"]

    def names(self, event: Event) -> bool:
        """Whether the event is a record of this key."""
        if self.user is None:
            return event.d in self.ds
        if event.d in self.private_ds:
            return True
        try:
            scope = memory_scope(event.d)
        except Invalid:
            return False
        return isinstance(scope, OfUser) and is_same_user(hex_of(scope.key), self.user)


class KeyType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click
    """npub1…, 64, 32 or 16 hex (optionally after `npub:`), group:ID, a word, or a full `d` tag."""

    name = "key"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Key:
        if isinstance(value, Key):
            return value
        text = str(value)
        if text.strip().lower().removeprefix("npub:").startswith("nsec1"):
            self.fail(NOT_PUBLIC, param, ctx)
        if text.startswith(CONFIG):
            self.fail("this is configuration: see `rookery config`", param, ctx)
        try:
            return _key_in(text)
        except Invalid as invalid:
            self.fail(invalid.text, param, ctx)


def _key_in(text: str) -> Key:
    """Raises Invalid."""
    if text.startswith(MEMORY):
        scope = memory_scope(text)
        if isinstance(scope, OfUser):
            return Key(text, user=hex_of(scope.key))
        return Key(text, group=scope.id)
    user = text.removeprefix("npub:")  # the spelling of `rookery config`
    if user != text or text.lower().startswith("npub1") or is_key(text.lower()):
        return Key(text, user=user_in(user))
    if text.startswith("group:"):
        if text == "group:":
            raise Invalid("a group has an id: group:ID")
        return Key(text, group=text.removeprefix("group:"))
    if text.startswith(AGENT):
        category, key = category_and_key(text)
        return Key(text, plain=f"{category}:{key}")
    agent_d("core", text)
    return Key(text, plain=f"core:{text}")


async def records_of(client: Client, key: Key) -> list[Event]:
    """What this key may read."""
    found = client.query_all({"kinds": [kinds.APP_DATA], "#d": [*key.ds, *key.private_ds]})
    return [event async for event in found if key.names(event)]
