"""What a model is given: the context of an agent, assembled as its programs do. For its owners.

Invariant: made of events that both the reader and the agent may read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from relay.access.visibility import Viewer
from relay.console.ask import NotFoundError, cut
from relay.console.page import Found, Page
from relay.console.pages.groups import of_relay
from relay.console.readers import readers_text
from relay.memory.aman.fold import Fold
from relay.memory.aman.prompt import format_prompt
from relay.memory.fence import attribution
from relay.memory.nmem.checks import PIN, SESSION
from relay.memory.nmem.context import context, fenced_context
from relay.memory.nmem.ranking import Row
from relay.memory.nmem.records import Observation, Pin, Session, pinned_ids, project_of
from relay.memory.nmem.records import record_in as nmem_in
from relay.memory.snowclaw.chat import KINDS, Chat
from relay.memory.snowclaw.context import tokens
from relay.memory.snowclaw.history import oldest_first
from relay.memory.snowclaw.keys import AGENT
from relay.memory.snowclaw.respond import Agent
from relay.memory.snowclaw.working_copy import WorkingCopy
from relay.nostr import kinds
from relay.nostr.filters import Filter, filter_from
from relay.nostr.keys import public_key
from relay.nostr.nip59 import unsigned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relay.console.ask import Ask
    from relay.memory.snowclaw.context import Context
    from relay.nostr.event import Event

_ROWS: Final = 500
_SOURCES: Final = 100
_DAY_S: Final = 86_400
_BUDGET: Final = 4_000
"""Tokens, as `rookery context` without `--budget`."""
_SYSTEMS: Final = ("aman", "nmem", "snowclaw")
_NOTHING: Final = "There is no such agent, or it is not yours."


@dataclass(frozen=True, slots=True)
class _Agent:
    """An agent, as its owner looks at it."""

    ask: Ask
    pubkey: str
    owners: frozenset[str]

    async def events(self, *filters: Filter) -> list[Event]:
        """What both of them may read."""
        found = await self.ask.events_or_none(*filters)
        if not found or self.ask.pubkey == self.pubkey:
            return found
        as_agent = replace(self.ask, viewer=Viewer(frozenset({self.pubkey})), notes=[])
        ids = frozenset(event.id for event in found)
        given = await as_agent.events_or_none(Filter(ids=ids, limit=len(ids)))
        readable = {event.id for event in given}
        return [event for event in found if event.id in readable]

    def filter(self, **given: Any) -> Filter:
        return filter_from({"limit": _ROWS, **given}, self.ask.services.terms)


@dataclass(frozen=True, slots=True)
class _Made:
    text: str
    sources: Sequence[Event]
    """What it was made of."""
    unread: int = 0
    """Encrypted or malformed records."""
    pieces: Sequence[Mapping[str, object]] = ()
    """Of a context with a budget: what was kept and trimmed, and why."""


async def _context(ask: Ask) -> Found:
    mine = own_agents(ask)
    named = ask.query.get("agent", "").strip()
    system, of = ask.query.get("system", ""), ask.query.get("of", "")
    data: dict[str, object] = {"agents": mine, "agent": "", "choices": [], "made": None}
    data |= {"system": system if system in _SYSTEMS else "", "of": of}
    if not named and not mine:
        return Found(data)
    pubkey = public_key(named) if named else mine[0]
    if pubkey not in mine:
        raise NotFoundError(_NOTHING)
    agent = _Agent(ask, pubkey, _owners(ask, pubkey))
    data["agent"] = pubkey
    keys = [*mine]
    if of and system in _SYSTEMS:
        made = await {"aman": _aman, "nmem": _nmem, "snowclaw": _snowclaw}[system](agent, of)
        keys += [event.pubkey for event in made.sources]
        data["made"] = {
            "text": made.text,
            "bytes": len(made.text.encode("utf-8", "replace")),
            "tokens": tokens(made.text) if made.text else 0,
            "unread": made.unread,
            "pieces": made.pieces,
            "total": len(made.sources),
            "sources": [
                {
                    "id": event.id,
                    "kind": event.kind,
                    "pubkey": event.pubkey,
                    "at": event.created_at,
                    "readers": readers_text(ask, event),
                }
                for event in made.sources[:_SOURCES]
            ],
        }
    else:
        data["choices"] = await _choices(agent)
    return Found(data, await ask.people(keys))


def own_agents(ask: Ask) -> list[str]:
    """Those of whom the reader is an owner, and the reader's own key."""
    actors = ask.services.state.actors
    mine = set(actors.agents) if ask.owner_view is not None else set[str]()
    for home in actors.households:
        if ask.owner_view is not None or ask.pubkey in home.owners:
            mine |= home.agents
    if ask.pubkey is not None and actors.is_agent(ask.pubkey):
        mine.add(ask.pubkey)
    return sorted(mine)


def _owners(ask: Ask, agent: str) -> frozenset[str]:
    actors = ask.services.state.actors
    homes = [home.owners for home in actors.households if agent in home.agents]
    return frozenset[str]().union(*homes) or actors.owners


async def _choices(agent: _Agent) -> list[dict[str, str]]:
    """Of what there may be a context."""
    records = await agent.events(
        agent.filter(kinds=[*kinds.AMAN], authors=[agent.pubkey]),
        agent.filter(kinds=[kinds.APP_DATA], authors=[agent.pubkey], **{"#d": [SESSION]}),
    )
    by_relay = [agent.ask.services.relay_pubkey]
    lists = agent.filter(kinds=[kinds.GROUP_MEMBERS], authors=by_relay, **{"#p": [agent.pubkey]})
    found = {("aman", event.tag("hk") or "") for event in records if event.kind in kinds.AMAN}
    found |= {
        ("nmem", project_of(event) or "") for event in records if event.kind not in kinds.AMAN
    }
    found |= {("snowclaw", event.d) for event in await agent.events(lists)}
    return [{"system": system, "of": of} for system, of in sorted(found) if of]


# -- Aman: as its `format_prompt` ------------------------------------------------------------------


async def _aman(agent: _Agent, hk: str) -> _Made:
    found = await agent.events(
        agent.filter(kinds=[*kinds.AMAN], authors=[agent.pubkey], **{"#hk": [hk]})
    )
    fold = Fold()
    async for event in agent.ask.one_by_one(found):
        fold.apply(event)
    snapshot = fold.snapshot(hk, agent.pubkey, reader=agent.pubkey)
    text = await agent.ask.in_thread(lambda: format_prompt(snapshot))
    return _Made(text or "", found, len(snapshot.unread))


# -- nmem: as `rookery nmem context` ---------------------------------------------------------------


async def _nmem(agent: _Agent, project: str) -> _Made:
    now, tag = agent.ask.now, f"project:{project}"
    by: dict[str, Any] = {"authors": sorted(agent.owners | {agent.pubkey})}
    of_project = await agent.events(
        agent.filter(kinds=[kinds.APP_DATA], **by, **{"#t": [tag], "#d": [SESSION]}),
        agent.filter(kinds=[kinds.APP_RECORD], **by, **{"#t": [tag]}, since=now - _DAY_S),
    )
    pins = await agent.events(agent.filter(kinds=[kinds.APP_DATA], **by, **{"#d": [PIN]}))
    told = [
        (event.pubkey, pin)
        async for event in agent.ask.one_by_one(pins)
        if isinstance(pin := nmem_in(event), Pin)
    ]
    ids = {pin.event_id for _, pin in told}
    pinned = await agent.events(agent.filter(ids=sorted(ids), **by)) if ids else []
    found = [*{event.id: event for event in [*of_project, *pinned]}.values()]
    people = await agent.ask.people(event.pubkey for event in found)

    def written_by(event: Event) -> str:
        own = event.pubkey == agent.pubkey
        return "" if own else attribution(event.pubkey, people[event.pubkey]["name"])

    records = [(event, nmem_in(event)) async for event in agent.ask.one_by_one(oldest_first(found))]
    is_pinned = pinned_ids(told, {event.id: event.pubkey for event in found}, agent.owners)
    rows = [
        Row(
            number,
            record.timestamp,
            record.obs_type,
            record.content,
            project_of(event) or "",
            record.file_path,
            event.id in is_pinned,
            written_by(event),
        )
        for number, (event, record) in enumerate(records, 1)
        if isinstance(record, Observation)
    ]
    sessions = [(event, each) for event, each in records if isinstance(each, Session)]
    authors = {each.id: written_by(event) for event, each in sessions}

    def made() -> str:
        own = [each for _, each in sessions]
        return fenced_context(context(project, own, rows, now, authors=authors), agent.pubkey)

    text = await agent.ask.in_thread(made)
    return _Made(text, found)


# -- Snowclaw: as `rookery context` ----------------------------------------------------------------


async def _snowclaw(agent: _Agent, group: str) -> _Made:
    copy = WorkingCopy(agent.pubkey, agent.owners)
    records = await agent.events(
        agent.filter(kinds=[kinds.APP_DATA], authors=sorted(copy.authors), **{"#d": [AGENT]})
    )
    async for event in agent.ask.one_by_one(records):
        copy.apply(event)
    chat = Chat(Agent(agent.pubkey, owners=agent.owners), copy)
    of_group = await agent.events(
        of_relay(agent.ask, kinds.GROUP_METADATA, kinds.GROUP_MEMBERS, group_ids=[group])
    )
    messages = await agent.events(
        Filter(kinds=frozenset(KINDS), tags=(("h", frozenset({group})),), limit=_ROWS)
    )
    if not of_group and not messages:
        raise NotFoundError("There is no such group, or you and the agent may not read it both.")
    keys = frozenset(event.pubkey for event in messages) | {agent.pubkey} | agent.owners
    profiles = await agent.events(
        Filter(kinds=frozenset({kinds.PROFILE}), authors=keys, limit=_ROWS)
    )
    newest = next(
        (event for event in reversed(oldest_first(messages)) if event.pubkey != agent.pubkey), None
    )
    if newest is None:
        asks = min(agent.owners, default=agent.pubkey)
        newest = unsigned(asks, kinds.CHAT, [["h", group]], "", agent.ask.now)

    def assembled() -> Context:
        for event in [*profiles, *of_group]:
            chat.see(event)
        chat.fill(messages)
        return chat.assemble(newest, "", _BUDGET)

    made = await agent.ask.in_thread(assembled)
    pieces = [
        {
            "section": str(piece.section),
            "kept": piece.is_kept,
            "tokens": piece.tokens,
            "why": str(piece.why),
            "text": cut(" ".join(piece.text.split()), 80),
        }
        for piece in made.pieces
    ]
    unread = sum(1 for _ in copy.unread())
    return _Made(made.text, [*records, *of_group, *messages], unread, pieces)


PAGES: Final = (
    Page(
        "context",
        "Context of a model",
        "The context of an agent, assembled from records that reader and agent may both read.",
        _context,
        params={
            "agent": "npub or 64 hex of an agent of which one is an owner",
            "system": "aman, nmem or snowclaw",
            "of": "history key, project or group",
        },
        in_menu=False,
        command="rookery context",
    ),
)
