"""Events: what a filter finds for the reader, and one event as it is stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from difflib import unified_diff
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

import orjson

from relay.console.ask import NotFoundError, shown
from relay.console.page import Found, Page
from relay.console.pages.context import own_agents
from relay.console.pages.groups import may_delete, of_relay, users_in
from relay.console.readers import readers_text
from relay.console.tables import Column, Holds, Rows
from relay.errors import Invalid
from relay.memory.fence import shell_word
from relay.memory.snowclaw.keys import AGENT, CONFIG, MEMORY
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.nostr.filters import Filter, filter_from
from relay.nostr.nip09 import address_tags
from relay.nostr.nip19 import EventPointer, encode_pointer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.console.ask import Ask
    from relay.nostr.event import Event

_GONE: Final = "The relay deletes all versions of this event and refuses them from then on."
_ASKED: Final = (
    "Only the author can delete a record: the agent does so at once, or when it next starts."
)
NO_EVENT: Final = "There is no such event, or you may not read it."
_DEFAULT: Final = '{"limit": 100}'
_ROWS: Final = 500
_MAX_FILTERS: Final = 10
_MAX_VALUES: Final = 1000
"""Tags and their values that are shown one by one: each takes 2 us of the loop, a key 40."""
_MAX_RAW: Final = 65_536
"""Bytes of an event as it is stored that are shown, and that are indented: 30 ms for 500 kB."""
_LINE: Final = 160
_MAX_VERSIONS: Final = 50
_MAX_DIFF: Final = 400
"""Lines of one difference."""
_MAX_COMPARED: Final = 20_000
"""Characters of two versions."""
_MAX_INDENTED: Final = 65_536
"""Bytes: deeply nested JSON can take 250 times what it takes without indentation."""
_AROUND: Final = 2
"""Equal lines that are shown before and after those that differ."""
_MAX_DIFFERING: Final = 4_096
"""Pairs of lines from the first to the last that differ: comparing takes the loop up to the third
power of their number, and 6 ms for 64 with 64."""
_COLUMNS: Final = (
    Column("id", "Event", Holds.EVENT),
    Column("kind", "Kind", Holds.KIND),
    Column("created_at", "Created", Holds.TIME),
    Column("pubkey", "Author", Holds.PERSON),
    Column("group", "Group", Holds.GROUP),
    Column("content", "Content"),
)


async def _events(ask: Ask) -> Found:
    text = ask.query.get("filter", "").strip() or _DEFAULT
    data: dict[str, object] = {"filter": text, "error": "", "kinds": [], "is_full": False}
    try:
        filters = _filters(text, ask)
    except Invalid as invalid:
        return Found({**data, "error": invalid.text}, {}, Rows(_COLUMNS, []))
    found = await ask.events(*filters)
    people = await ask.people(event.pubkey for event in found)
    counted = Counter(event.kind for event in found)
    data["kinds"] = [{"kind": kind, "events": number} for kind, number in counted.most_common(12)]
    data["is_full"] = any(each.limit is not None and len(found) >= each.limit for each in filters)
    return Found(data, people, Rows(_COLUMNS, [_row(event) for event in found], people))


def _filters(text: str, ask: Ask) -> list[Filter]:
    """One filter, or a list of some. Raises Invalid, Unsupported."""
    try:
        given = orjson.loads(text)
    except ValueError:
        raise Invalid('this is not JSON: give a filter of NIP-01, such as {"kinds": [9]}') from None
    listed = given if isinstance(given, list) else [given]
    if not 1 <= len(listed) <= _MAX_FILTERS:
        raise Invalid(f"give 1 to {_MAX_FILTERS} filters")
    for each in listed:
        if isinstance(each, dict):
            limit = each.get("limit")
            if limit is None or (isinstance(limit, int) and limit > _ROWS):
                each["limit"] = _ROWS
    return [filter_from(each, ask.services.terms) for each in listed]


def _row(event: Event) -> dict[str, object]:
    line = " ".join(event.content[: 2 * _LINE].split())
    return {**shown(event), "content": line if len(line) <= _LINE else f"{line[:_LINE]}…"}


async def _event(ask: Ask) -> Found:
    event_id = ask.query.get("id", "")
    if not is_hex64(event_id):
        raise NotFoundError(NO_EVENT)
    found = await ask.events_or_none(Filter(ids=frozenset({event_id}), limit=1))
    if not found:
        raise NotFoundError(NO_EVENT)
    event = found[0]
    tags = _first_tags(event)
    named = {tag[1] for tag in tags if len(tag) > 1 and tag[0] == "p" and is_hex64(tag[1])}
    answers = await ask.events_or_none(Filter(tags=(("e", frozenset({event.id})),), limit=50))
    versions = await _versions(ask, event)
    data: dict[str, object] = {
        "readers": readers_text(ask, event),
        "versions": await _differences(versions, event),
        "event": shown(event) | {"content": event.content},
        "tags": tags,
        "more_tags": len(event.tags) - len(tags),
        "raw": _as_stored(event),
        "nevent": encode_pointer(EventPointer(event.id, (ask.url,), event.pubkey, event.kind)),
        "size": len(event.raw),
        "is_cut": len(event.raw) > _MAX_RAW,
        "refers": [_row(other) for other in answers],
        "removals": await _removals(ask, event),
        "is_mine": event.pubkey == ask.pubkey,
    }
    others = (each.pubkey for each in (*answers, *versions))
    people = await ask.people([event.pubkey, *sorted(named), *others])
    return Found(data, people)


def _as_stored(event: Event) -> str:
    if len(event.raw) > _MAX_RAW:
        return event.raw[:_MAX_RAW].decode(errors="ignore") + "…"
    return orjson.dumps(orjson.loads(event.raw), option=orjson.OPT_INDENT_2).decode()


def _first_tags(event: Event) -> list[list[str]]:
    """As many as a page shows one by one."""
    left = _MAX_VALUES
    shown_tags = []
    for tag in event.tags:
        left -= 1 + len(tag)
        if left < 0:
            break
        shown_tags.append(list(tag))
    return shown_tags


async def _removals(ask: Ask, event: Event) -> list[dict[str, object]]:
    """How the reader may have the event deleted: `label` and `text`, `kind` and `tags` of what is
    to be signed or the `method` of NIP-86, and the `command`."""
    ids, of_kind = ["e", event.id], ["k", str(event.kind)]
    if event.pubkey == ask.pubkey and not kinds.is_undeletable(event.kind):
        tags, named = [ids], event.id
        if kinds.class_of(event.kind) is kinds.KindClass.ADDRESSABLE:
            address = f"{event.kind}:{event.pubkey}:{event.d}"
            tags.append(["a", address])
            named += f" {shell_word(address)}"
        deletion = _signed("Delete for ever", kinds.DELETION, [*tags, of_kind])
        return [{**deletion, "text": _GONE, "command": f"rookery forget {named}"}]
    found = []
    is_memory = event.d.startswith(AGENT) and not event.d.startswith(CONFIG)
    if is_memory and event.pubkey in own_agents(ask):
        tags = [ids, *address_tags([event]), of_kind, ["p", event.pubkey]]
        asking = _signed("Ask the agent to forget it", kinds.DELETION, tags)
        key = event.d.removeprefix(MEMORY).removeprefix("npub:")
        command = f"rookery memory forget {shell_word(key)}"
        found.append({**asking, "text": _ASKED, "command": command})
    group = ask.services.state.policy.row_group(event)  # None: its `h` is only a label
    is_record = event.kind in kinds.GROUP_RECORDS and event.kind != kinds.CREATE_INVITE
    if group and ask.pubkey is not None and not is_record:
        lists = await ask.events_or_none(of_relay(ask, kinds.GROUP_ADMINS, group_ids=[group]))
        if may_delete(ask.pubkey, event.pubkey, await users_in(lists[0] if lists else None)):
            moderation = _signed("Delete for ever", kinds.DELETE_EVENT, [["h", group], ids])
            command = f"rookery forget {event.id} --group {shell_word(group)}"
            found.append({**moderation, "text": _GONE, "command": command})
    if ask.owner_view is not None and event.pubkey != ask.services.relay_pubkey:
        ban = {**_signed("Ban this event", kinds.DELETION, []), "method": "banevent"}
        found.append({**ban, "text": f"As owner. {_GONE}", "command": ""})
    return found


def _signed(label: str, kind: int, tags: list[list[str]]) -> dict[str, object]:
    return {"label": label, "method": "", "kind": kind, "tags": tags}


async def _versions(ask: Ask, event: Event) -> list[Event]:
    """What is stored under the same address, by this author and by others, oldest first."""
    is_addressed = kinds.class_of(event.kind) is kinds.KindClass.ADDRESSABLE
    if not event.d or not (is_addressed or event.kind == kinds.APP_RECORD):
        return []
    found = await ask.events_or_none(
        Filter(
            kinds=frozenset({event.kind}), tags=(("d", frozenset({event.d})),), limit=_MAX_VERSIONS
        )
    )
    return sorted(
        (each for each in found if each.d == event.d), key=lambda each: (each.created_at, each.id)
    )


async def _differences(versions: Sequence[Event], event: Event) -> list[dict[str, object]]:
    """Each version with what it changed in the one before it by the same author."""
    before: dict[str, str] = {}
    listed = []
    for each in versions:
        earlier = before.get(each.pubkey)
        changed = []
        if earlier is not None and len(earlier) + len(each.content) <= _MAX_COMPARED:
            changed = _changed(_readable(earlier), _readable(each.content))
            await asyncio.sleep(0)
        before[each.pubkey] = each.content
        one = {"id": each.id, "pubkey": each.pubkey, "created_at": each.created_at}
        listed.append({**one, "is_this": each.id == event.id, "changed": changed})
    return listed if len(listed) > 1 else []


def _changed(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """A diff; empty too when too much differs."""
    first = sum(1 for _ in takewhile(_are_equal, zip(before, after, strict=False)))
    ends = zip(reversed(before[first:]), reversed(after[first:]), strict=False)
    last = first + sum(1 for _ in takewhile(_are_equal, ends))
    begin, end = max(0, first - _AROUND), last - first - _AROUND
    before, after = (each[begin : len(each) - max(0, end)] for each in (before, after))
    if len(before) * len(after) > _MAX_DIFFERING:
        return []
    lines = islice(unified_diff(before, after, n=_AROUND, lineterm=""), 2, _MAX_DIFF)
    return ["…" if line.startswith("@@") else line for line in lines]


def _are_equal(lines: tuple[str, str]) -> bool:
    return lines[0] == lines[1]


def _readable(content: str) -> list[str]:
    """Lines of a short text, JSON with one for each value."""
    with contextlib.suppress(ValueError, TypeError):  # no JSON, or too deep
        indented = orjson.dumps(orjson.loads(content), option=orjson.OPT_INDENT_2)
        if len(indented) <= _MAX_INDENTED:
            return indented.decode().splitlines()
    return content.splitlines()


PAGES: Final = (
    Page(
        "events",
        "Events",
        "The events that match a NIP-01 filter and that the reader may read.",
        _events,
        params={"filter": "a filter as JSON, or a list of up to ten"},
        has_table=True,
        command="nak req",
    ),
    Page(
        "event",
        "Event",
        "One event as it is stored, what refers to it, and who may read it.",
        _event,
        params={"id": "id of the event, 64 hex"},
        in_menu=False,
    ),
)
