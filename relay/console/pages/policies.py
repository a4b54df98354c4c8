"""Policies: the rules in force, a file of theirs, and why an event fares as it does. For owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from relay.console.ask import NotFoundError, shown
from relay.console.page import Audience, Found, Page
from relay.errors import Invalid, Refused
from relay.nostr.event import is_hex64
from relay.nostr.filters import Filter
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from relay.console.ask import Ask
    from relay.nostr.event import Event

_MAX_EVENT: Final = 12_000


async def _policies(ask: Ask) -> Found:
    found = await ask.for_owner.policies()
    status = await ask.for_owner.status()
    # A file that is not in force: an older version is.
    may_edit = ask.for_owner.may_edit_policies
    fault = status.problems.get("policies", "")
    return Found({**found, "fault": fault, "may_edit": may_edit})


async def _policy_file(ask: Ask) -> Found:
    name = ask.query.get("name", "")
    text = await ask.for_owner.policy_file(name)
    if text is None:
        raise NotFoundError("No policy file of this name is in force.")
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    is_own = not name.startswith(("packaged/", "/"))
    may_edit = is_own and ask.for_owner.may_edit_policies
    return Found({"name": name, "lines": lines, "may_edit": may_edit})


async def _explain(ask: Ask) -> Found:
    event_id, pasted = ask.query.get("id", ""), ask.query.get("event", "").strip()
    data: dict[str, object] = {
        "pasted": pasted,
        "as": ask.query.get("as", ""),
        "event": None,
        "write": None,
        "read": None,
        "error": "",
    }
    if event_id:
        event = await _stored(ask, event_id)
        read = await ask.for_owner.explain_read(event)
        data |= {"event": shown(event), "read": read}
        readers = read["readers"]
        assert isinstance(readers, list)
        keys = [each["pubkey"] for each in readers if each["pubkey"]]
        return Found(data, await ask.people([event.pubkey, *keys]))
    if pasted:
        try:
            data["write"] = await ask.for_owner.explain_write(_fields(pasted), _logins(ask))
        except Refused as refused:
            data["error"] = refused.text
    return Found(data)


async def _stored(ask: Ask, event_id: str) -> Event:
    found = []
    if is_hex64(event_id):
        found = await ask.events_or_none(Filter(ids=frozenset({event_id}), limit=1))
    if not found:
        raise NotFoundError("There is no such event, or you may not read it.")
    return found[0]


def _fields(text: str) -> object:
    if len(text) > _MAX_EVENT:
        raise Invalid(f"the event has more than {_MAX_EVENT} characters: use the command")
    try:
        return orjson.loads(text)
    except ValueError:
        raise Invalid(
            'this is not JSON: give an event, or a draft such as {"kind":9,"tags":[["h","tea"]]}'
        ) from None


def _logins(ask: Ask) -> frozenset[str]:
    text = ask.query.get("as", "").strip()
    return frozenset({public_key(text)}) if text else frozenset()


PAGES: Final = (
    Page(
        "policies",
        "Policies",
        "The rules in force, in the order in which they apply, with file and line.",
        _policies,
        audience=Audience.OWNER,
        command="rookery policy show",
    ),
    Page(
        "policy-file",
        "Policy file",
        "The text of one policy file in force.",
        _policy_file,
        audience=Audience.OWNER,
        params={"name": "name of the file, as on the page of policies"},
        in_menu=False,
    ),
    Page(
        "explain",
        "Explain",
        "Which rules decide about an event: the answer when it is written, or who may read it.",
        _explain,
        audience=Audience.OWNER,
        params={
            "id": "a stored event: who may read it",
            "event": "an event or draft as JSON: the relay's answer to it",
            "as": "key that is logged in; none: the author",
        },
        in_menu=False,
        command="rookery policy explain",
    ),
)
