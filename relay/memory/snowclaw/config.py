"""Configuration records: the owner's settings for agents.

Values are written as tags and in the content; the tag takes precedence (S-15).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.fields import compact, is_integer, no_object, storable_object, whole_number
from relay.memory.snowclaw.keys import (
    CONFIG,
    Everywhere,
    OfGroup,
    OfUser,
    Scope,
    config_d,
    config_scope,
    hex_of,
    is_same_user,
)
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds
from relay.nostr.event import object_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from relay.nostr.event import Event

MAX_HISTORY: Final = 1000
MODE: Final = "respond_mode"
HISTORY: Final = "context_history"

BAD_MODE: Final = "respond_mode must be all, mention, owner or none"
BAD_HISTORY: Final = "context_history must be an integer from 0 to 1000"


class RespondMode(StrEnum):
    """Which messages an agent answers (S-35)."""

    ALL = "all"
    MENTION = "mention"
    OWNER = "owner"
    NONE = "none"


_MODES: Final[Mapping[str, RespondMode]] = {mode.value: mode for mode in RespondMode} | {
    "silent": RespondMode.NONE,
    "listen": RespondMode.NONE,
}


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of one scope; None: not set."""

    respond_mode: RespondMode | None = None
    context_history: int | None = None
    """Capacity of a group's ring buffer, 0 to 1000 messages."""


DEFAULT_MODE: Final = RespondMode.MENTION
DEFAULT_HISTORY: Final = 20


def respond_mode_in(value: object) -> RespondMode:
    """Raises Invalid with the refusal text (S-16)."""
    mode = _MODES.get(value.lower()) if isinstance(value, str) else None
    if mode is None:
        raise Invalid(BAD_MODE)
    return mode


def context_history_in(value: object) -> int:
    """An integer or its decimal digits. Raises Invalid with the refusal text (S-16)."""
    count = whole_number(value) if isinstance(value, str) else value
    if not is_integer(count) or not 0 <= count <= MAX_HISTORY:
        raise Invalid(BAD_HISTORY)
    return count


def config_of(values: Mapping[str, object]) -> GroupConfig:
    """The settings in a content, file or command line; null: not set. Raises Invalid.

    Other names are ignored.
    """
    mode, history = values.get(MODE), values.get(HISTORY)
    return GroupConfig(
        None if mode is None else respond_mode_in(mode),
        None if history is None else context_history_in(history),
    )


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """The settings of one event."""

    event: Event
    scope: Scope
    config: GroupConfig
    extra: Mapping[str, object] = field(default_factory=dict)
    """Unknown fields of the content: kept on rewrite (S-16)."""


def config_in(event: Event) -> ConfigRecord | UnreadableRecord:
    """By any author; `DynamicConfig` checks that it is an owner (S-19)."""
    fields = {} if event.content == "" else storable_object(event.content)
    try:
        scope = config_scope(event.d)
        config = _values_in(event, fields)
    except Invalid as fault:
        return UnreadableRecord(event, fault.text)
    extra = {name: value for name, value in (fields or {}).items() if name not in (MODE, HISTORY)}
    return ConfigRecord(event, scope, config, extra)


def _values_in(event: Event, fields: Mapping[str, object] | None) -> GroupConfig:
    """Raises Invalid with the first refusal text (S-15, S-16)."""
    if fields is None:
        raise Invalid(no_object(event.content))
    tags = {name: event.tag(name) for name in (MODE, HISTORY)}
    in_tags = {name: value for name, value in tags.items() if value is not None}
    for given in (in_tags, fields):
        if given.get(MODE) is not None:
            respond_mode_in(given[MODE])
    for given in (in_tags, fields):
        if given.get(HISTORY) is not None:
            context_history_in(given[HISTORY])
    return config_of({**fields, **in_tags})


def values_fault(event: Event) -> str | None:
    """The refusal for the tags or content of a configuration, or None."""
    try:
        _values_in(event, {} if event.content == "" else object_in(event.content))
    except Invalid as fault:
        return fault.text
    return None


def config_draft(
    scope: Scope,
    changes: GroupConfig,
    stored: ConfigRecord | None,
    created_at: int,
    unset: Collection[str] = (),
) -> Draft:
    """The next version: the stored one with `changes`, without the values named in `unset`.

    The `h` of a group's configuration is only a label (G-31).
    """
    before = GroupConfig() if stored is None else stored.config
    mode = before.respond_mode if changes.respond_mode is None else changes.respond_mode
    history = before.context_history if changes.context_history is None else changes.context_history
    tags = [["d", config_d(scope)]]
    if isinstance(scope, OfGroup):
        tags.append(["h", scope.id])
    fields: dict[str, object] = {}
    if mode is not None and MODE not in unset:
        tags.append([MODE, mode.value])
        fields[MODE] = mode.value
    if history is not None and HISTORY not in unset:
        tags.append([HISTORY, str(history)])
        fields[HISTORY] = history
    extra = {} if stored is None else dict(stored.extra)
    return Draft(kinds.APP_DATA, tags, compact(fields | extra), created_at)


# -- effective settings ------------------------------------------------------------------------


class Source(StrEnum):
    """Source of a value, in order of precedence (S-17)."""

    NPUB = "npub"
    GROUP = "group"
    GLOBAL = "global"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class EffectiveConfig(GroupConfig):
    """The settings for one user in one group, all set."""

    respond_mode: RespondMode = DEFAULT_MODE
    context_history: int = DEFAULT_HISTORY
    respond_mode_from: Source = Source.DEFAULT
    context_history_from: Source = Source.DEFAULT


def effective(levels: Iterable[tuple[Source, GroupConfig]]) -> EffectiveConfig:
    """The settings, each from the first level that sets it. `levels`: in order of precedence
    (S-17)."""
    mode, mode_from = DEFAULT_MODE, Source.DEFAULT
    history, history_from = DEFAULT_HISTORY, Source.DEFAULT
    for source, config in levels:
        if config.respond_mode is not None and mode_from is Source.DEFAULT:
            mode, mode_from = config.respond_mode, source
        if config.context_history is not None and history_from is Source.DEFAULT:
            history, history_from = config.context_history, source
    return EffectiveConfig(mode, history, mode_from, history_from)


@dataclass(frozen=True, slots=True)
class DynamicConfig:
    """All configurations: a fold of the owners' events, for any order of arrival."""

    owners: frozenset[str]
    """Public keys; events of others are ignored (S-19)."""
    file: GroupConfig = field(default_factory=GroupConfig)
    records: Mapping[str, ConfigRecord] = field(default_factory=dict)
    """By `d`; the newest of all owners."""

    def after(self, event: Event) -> DynamicConfig:
        """With one more event; the same object if nothing changes (S-18, S-19)."""
        if event.kind != kinds.APP_DATA or not event.d.startswith(CONFIG):
            return self
        if event.pubkey not in self.owners:
            return self
        record = config_in(event)
        if isinstance(record, UnreadableRecord):
            return self
        known = self.records.get(event.d)
        if known is not None and not _is_newer(event, known.event):
            return self
        return replace(self, records={**self.records, event.d: record})

    def at(self, scope: Scope) -> ConfigRecord | None:
        """The record of one scope; of a user under exactly this form of the key."""
        return self.records.get(config_d(scope))

    def of_user(self, key: str) -> ConfigRecord | None:
        """The newest record under any form of a user's key (S-17). `key`: see `hex_of`."""
        newest: ConfigRecord | None = None
        for record in self.records.values():
            if not isinstance(record.scope, OfUser):
                continue
            if not is_same_user(hex_of(record.scope.key), key):
                continue
            if newest is None or _is_newer(record.event, newest.event):
                newest = record
        return newest

    def effective(self, group: str | None = None, npub: str | None = None) -> EffectiveConfig:
        """The settings for a user in a group. `npub`: the user's key, see `hex_of`."""
        records = (
            (Source.NPUB, None if npub is None else self.of_user(npub)),
            (Source.GROUP, None if group is None else self.at(OfGroup(group))),
            (Source.GLOBAL, self.at(Everywhere())),
        )
        levels = [(source, record.config) for source, record in records if record is not None]
        return effective([*levels, (Source.FILE, self.file)])


def _is_newer(one: Event, other: Event) -> bool:
    return (-one.created_at, one.id) < (-other.created_at, other.id)
