"""Changes that begin with a form: settings of agents, the metadata of a group, texts of the relay.

The answer to a form shows what it would change, the event or NIP-86 calls to sign, and the
equivalent command; the request itself changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.access.management import ListName
from relay.console.ask import NotFoundError
from relay.console.page import Audience, Found, Page
from relay.console.pages.groups import NO_GROUP, of_relay, users_in
from relay.console.readers import readers_text
from relay.console.tables import Column, Holds, Rows
from relay.errors import Invalid, Prefix, Refused
from relay.groups.actions import OPPOSITE, edit_tags
from relay.memory.fence import shell_word
from relay.memory.snowclaw.config import (
    HISTORY,
    MODE,
    DynamicConfig,
    GroupConfig,
    RespondMode,
    config_draft,
    config_of,
)
from relay.memory.snowclaw.keys import CONFIG, OfUser, hex_of, scope_in
from relay.memory.snowclaw.records import newest
from relay.nostr import kinds
from relay.nostr.event import made_from
from relay.nostr.filters import filter_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relay.console.ask import Ask
    from relay.memory.snowclaw.keys import Scope
    from relay.nostr.event import Event

_UNSET: Final = "unset"
_TEXTS: Final = ("name", "about", "picture")
_FLAGS: Final = {
    "private": "Only members read",
    "restricted": "Only members write",
    "closed": "Joining needs an invite",
    "hidden": "Only members see the group",
}
_SETTINGS: Final = (
    Column("scope", "For", Holds.LINK),
    Column("name", "Setting"),
    Column("value", "Value"),
    Column("pubkey", "Signed by", Holds.PERSON),
    Column("created_at", "Since", Holds.TIME),
    Column("readers", "May be read by"),
)


def _form(fields: Sequence[Mapping[str, object]], **parts: object) -> dict[str, object]:
    """`fields`: `name`, `label`, `value`, and `choices`: [value, text], or none: a line;
    `why_fixed`: why it cannot be changed, or empty. `hidden`: name → value. `changes`: `name`,
    `before`, `after`. `event`: `kind`, `tags`, `content` and `after`, the time of the version that
    it replaces. `calls`: `label`, `method`, `params`."""
    empty: dict[str, object] = {
        "hidden": {},
        "changes": [],
        "event": None,
        "calls": [],
        "command": "",
        "error": "",
    }
    return {"fields": fields, **empty, "is_asked": False, **parts}


def _line(name: str, label: str, value: str, *, lines: bool = False) -> dict[str, object]:
    return {
        "name": name,
        "label": label,
        "value": value,
        "choices": [],
        "lines": lines,
        "why_fixed": "",
    }


def _choice(
    name: str, label: str, value: str, choices: Sequence[tuple[str, str]]
) -> dict[str, object]:
    return {"name": name, "label": label, "value": value, "choices": choices, "why_fixed": ""}


# -- settings of agents ----------------------------------------------------------------------------


async def _config(ask: Ask) -> Found:
    wanted = {"kinds": [kinds.APP_DATA], "#d": [CONFIG], "limit": 500}
    found = await ask.events_or_none(filter_from(wanted, ask.services.terms))
    owners = _owners(ask)
    settings = DynamicConfig(owners)
    for event in found:
        settings = settings.after(event)
    rows: list[dict[str, object]] = [
        {
            "scope": str(record.scope),
            "name": name,
            "value": str(value),
            "pubkey": record.event.pubkey,
            "created_at": record.event.created_at,
            "readers": readers_text(ask, record.event),
            "id": record.event.id,
            "link": f"event?id={record.event.id}",
        }
        for _, record in sorted(settings.records.items())
        for name, value in (
            (MODE, record.config.respond_mode),
            (HISTORY, record.config.context_history),
        )
        if value is not None
    ]
    people = await ask.people(str(row["pubkey"]) for row in rows)
    data: dict[str, object] = {
        "form": _config_form(ask, settings, found) if ask.pubkey in owners else None,
        "effective": _effective(ask, settings),
        "group": ask.query.get("group", ""),
        "user": ask.query.get("user", ""),
    }
    return Found(data, people, Rows(_SETTINGS, rows, people))


def _owners(ask: Ask) -> frozenset[str]:
    """The owners of the relay, and those of the reader's households."""
    actors = ask.services.state.actors
    homes = [home.owners for home in actors.households if ask.pubkey in home.keys]
    return actors.owners.union(*homes)


def _effective(ask: Ask, settings: DynamicConfig) -> list[dict[str, object]]:
    """What applies to a user in a group, and which scope says so. Raises Invalid."""
    group, user = ask.query.get("group", "").strip(), ask.query.get("user", "").strip()
    if not group and not user:
        return []
    found = settings.effective(group or None, hex_of(user) if user else None)
    return [
        {"name": MODE, "value": found.respond_mode.value, "from": found.respond_mode_from.value},
        {
            "name": HISTORY,
            "value": str(found.context_history),
            "from": found.context_history_from.value,
        },
    ]


def _config_form(ask: Ask, settings: DynamicConfig, found: Sequence[Event]) -> dict[str, object]:
    given = {name: ask.query.get(name, "").strip() for name in ("scope", MODE, HISTORY)}
    modes = [("", "as it is"), *((mode.value, mode.value) for mode in RespondMode)]
    fields = [
        _line("scope", "For: global, group:ID or npub:KEY", given["scope"]),
        _choice(MODE, "Answers (respond_mode)", given[MODE], [*modes, (_UNSET, "not set here")]),
        _line(HISTORY, "Messages of a group that it remembers (context_history)", given[HISTORY]),
    ]
    if not given[MODE] and not given[HISTORY]:
        return _form(fields)
    try:
        own = [event for event in found if event.pubkey == ask.pubkey]
        return _config_change(fields, given, settings, own, ask.now)
    except Invalid as invalid:
        return _form(fields, error=invalid.text, is_asked=True)


def _config_change(
    fields: Sequence[Mapping[str, object]],
    given: Mapping[str, str],
    settings: DynamicConfig,
    own: Sequence[Event],
    now: int,
) -> dict[str, object]:
    """`own`: the settings by who will sign this one. Raises Invalid."""
    scope = _scope(given["scope"])
    values = {name: given[name] for name in (MODE, HISTORY) if given[name]}
    unset = [name for name, value in values.items() if value == _UNSET]
    changes = config_of({name: value for name, value in values.items() if value != _UNSET})
    stored = settings.at(scope)
    before = GroupConfig() if stored is None else stored.config
    draft = config_draft(scope, changes, stored, now, unset)
    told = [(MODE, before.respond_mode, changes.respond_mode)]
    listed = [
        {
            "name": name,
            "before": "not set" if old is None else str(old),
            "after": "not set" if name in unset else str(new),
        }
        for name, old, new in [*told, (HISTORY, before.context_history, changes.context_history)]
        if (name in unset and old is not None) or (new is not None and new != old)
    ]
    words = [f"{name}={value}" for name, value in values.items() if value != _UNSET]
    commands = [f"rookery config set {shell_word(scope)} {' '.join(words)}"] if words else []
    if unset:
        commands.append(f"rookery config unset {shell_word(scope)} {' '.join(unset)}")
    event = {
        "kind": draft.kind,
        "tags": [*draft.tags, made_from(newest(e for e in own if e.d == draft.d))],
        "content": draft.content,
        "after": 0 if stored is None else stored.event.created_at,
    }
    return _form(
        fields,
        changes=listed,
        event=event if listed else None,
        command=" && ".join(commands),
        is_asked=True,
    )


def _scope(text: str) -> Scope:
    """Raises Invalid."""
    lowered = text.lower()
    if lowered.startswith(("npub1", "npub:")):
        hex_of(lowered.removeprefix("npub:"))
        return OfUser(lowered.removeprefix("npub:"))
    return scope_in(text)


# -- metadata of a group ---------------------------------------------------------------------------


async def _edit_group(ask: Ask) -> Found:
    group_id = ask.query.get("id", "")
    lists = (kinds.GROUP_METADATA, kinds.GROUP_ADMINS)
    found = (
        await ask.events_or_none(of_relay(ask, *lists, group_ids=[group_id])) if group_id else []
    )
    state = {event.kind: event for event in reversed(found)}
    metadata = state.get(kinds.GROUP_METADATA)
    if metadata is None:
        raise NotFoundError(NO_GROUP)
    admins = await users_in(state.get(kinds.GROUP_ADMINS))
    if "admin" not in admins.get(ask.pubkey or "", []):
        raise Refused(Prefix.RESTRICTED, "only admins of the group may edit it")
    now = {name: metadata.tag(name) or "" for name in _TEXTS}
    now |= {flag: "yes" if metadata.has_tag(flag) else "no" for flag in _FLAGS}
    fixed = _fixed(ask, metadata, now)
    given = {name: _given(ask, name, value) for name, value in now.items()}
    given |= {flag: now[flag] for flag in fixed}
    fields = [_line(name, name.capitalize(), given[name], lines=name == "about") for name in _TEXTS]
    fields += [
        {
            **_choice(flag, text, given[flag], [(each, each) for each in ("yes", "no")]),
            "why_fixed": fixed.get(flag, ("", ""))[1],
        }
        for flag, text in _FLAGS.items()
    ]
    changed = {name: value for name, value in given.items() if value != now[name]}
    if changed:
        # The relay adds flags that its policies require to any edit.
        changed |= {flag: value for flag, (value, _) in fixed.items() if value != now[flag]}
    texts = {name: value for name, value in changed.items() if name in _TEXTS}
    flags = {name: value == "yes" for name, value in changed.items() if name in _FLAGS}
    words = [f"--{name} {shell_word(value)}" for name, value in texts.items()]
    words += [f"--{flag if is_on else OPPOSITE[flag]}" for flag, is_on in flags.items()]
    form = _form(
        fields,
        hidden={"id": group_id},
        changes=_told(now, changed),
        event={
            "kind": kinds.EDIT_METADATA,
            "tags": [*edit_tags(metadata.tags, group_id, texts, flags), made_from(metadata)],
            "content": "",
            "after": 0,
        }
        if changed
        else None,
        command=f"rookery group edit {shell_word(group_id)} {' '.join(words)}" if words else "",
        is_asked="name" in ask.query,
    )
    return Found({"form": form, "id": group_id, "name": now["name"] or group_id})


def _fixed(ask: Ask, metadata: Event, now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Flags that no edit of this group can choose: flag → value after an edit, and why."""
    always = ask.services.state.policy.groups.always
    required = "required by the policies of this relay, [groups] always"
    fixed = dict.fromkeys(sorted(_FLAGS.keys() & always), ("yes", required))
    if "hidden" not in fixed and (metadata.has_tag("parent") or metadata.has_tag("child")):
        fixed["hidden"] = (now["hidden"], "the same for a group and its subgroups")
    return fixed


def _given(ask: Ask, name: str, otherwise: str) -> str:
    return ask.query.get(name, otherwise).replace("\r\n", "\n")


def _told(now: Mapping[str, str], changed: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "before": now[name], "after": new} for name, new in changed.items()]


# -- texts of the relay ----------------------------------------------------------------------------


async def _edit_relay(ask: Ask) -> Found:
    now = {name: str(ask.information.get(name, "")) for name in ("name", "description", "icon")}
    given = {name: _given(ask, name, value) for name, value in now.items()}
    changed = {name: value for name, value in given.items() if value != now[name]}
    form = _form(
        [_line(name, name.capitalize(), given[name], lines=name == "description") for name in now],
        changes=_told(now, changed),
        calls=[
            {"label": f"Change the {name}", "method": f"changerelay{name}", "params": [value]}
            for name, value in changed.items()
        ],
        is_asked="name" in ask.query,
    )
    set_here = sorted(ask.services.state.management.of(ListName.TEXTS))
    return Found({"form": form, "set_here": set_here})


PAGES: Final = (
    Page(
        "config",
        "Agent settings",
        "How agents answer: values set for all, a group or a user, and effective values.",
        _config,
        params={
            "group": "effective values in this group",
            "user": "effective values for this user: npub or hex",
            "scope": "scope to change: global, group:ID or npub:KEY",
            MODE: "its new value; `unset`: none",
            HISTORY: "its new value; `unset`: none",
        },
        has_table=True,
        in_menu=False,
        command="rookery config list",
    ),
    Page(
        "edit-group",
        "Edit a group",
        "Name, description, picture and flags of a group, for its admins; what would change.",
        _edit_group,
        params={
            "id": "id of the group",
            **dict.fromkeys(_TEXTS, "its new value"),
            **dict.fromkeys(_FLAGS, "`yes` or `no`"),
        },
        in_menu=False,
        command="rookery group edit",
    ),
    Page(
        "edit-relay",
        "Edit the relay",
        "Name, description and icon of the relay (NIP-86); what would change.",
        _edit_relay,
        audience=Audience.OWNER,
        params=dict.fromkeys(("name", "description", "icon"), "its new value"),
        in_menu=False,
    ),
)
