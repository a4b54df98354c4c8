"""Memory: records of all systems with signer and readers, and a view of each system.

Whoever may not read a record finds none: everything comes from `Ask.events`.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from relay.console.ask import NotFoundError, cut
from relay.console.page import Found, Page
from relay.console.readers import readers_text
from relay.console.tables import Column, Holds, Rows
from relay.memory.aman.fold import Fold
from relay.memory.anamnesis.archive import archive_of
from relay.memory.anamnesis.provenance import MAX_NODES, children, trace
from relay.memory.anamnesis.records import record_in as claim_in
from relay.memory.nmem.checks import OBSERVATION, PIN, PROMPT, SESSION
from relay.memory.nmem.records import Observation, Pin, Prompt, Session
from relay.memory.nmem.records import record_in as nmem_in
from relay.memory.snowclaw.keys import user_ds
from relay.memory.transcripts.display import note_of
from relay.memory.transcripts.order import ordered
from relay.memory.transcripts.view import blocks, lines_of_notes
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.nostr.filters import Filter, filter_from
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.console.ask import Ask
    from relay.memory.aman.fold import Row
    from relay.memory.anamnesis.archive import Archive
    from relay.memory.registry import MemorySystem
    from relay.memory.transcripts.view import Block
    from relay.nostr.event import Event

_ROWS: Final = 500
_ROWS_OF_EACH: Final = 100
"""Where records of all systems are listed."""
_LINE_CHARS: Final = 200
_LINES: Final = 200
"""Of one block of a session."""
_COLUMNS: Final = (
    Column("title", "Record", Holds.LINK),
    Column("system", "System"),
    Column("text", "Text"),
    Column("pubkey", "Signed by", Holds.PERSON),
    Column("created_at", "Newest", Holds.TIME),
    Column("records", "Records", Holds.NUMBER),
    Column("readers", "May be read by"),
)
_GRAPH_NODES: Final = 40
_HASH: Final = re.compile("[0-9a-f]{32,64}")
_NOTHING: Final = "There is no such record, or you may not read it."


async def _memory(ask: Ask) -> Found:
    systems = ask.services.state.policy.systems
    chosen = ask.query.get("system", "")
    named = systems.by_name.get(chosen)
    asked = [] if chosen and named is None else [named] if named else [*systems.systems]
    most = _ROWS if named else _ROWS_OF_EACH
    filters = [each for system in asked for each in _filters_of(ask, system, most)]
    found = await ask.events_or_none(*filters) if filters else []
    of_record = {record: system for system in asked for record in system.records}
    rows: dict[str, dict[str, object]] = {}
    number: Counter[str] = Counter()
    """By system."""
    async for event in ask.one_by_one(sorted(found, key=lambda each: -each.created_at)):
        record = systems.type_of(event)
        if record is None:
            continue
        system = of_record[record]
        number[system.name] += 1
        # What is shown on one page is one row, told by its newest record that has a text.
        link = _link(event, system.name)
        row = rows.get(link)
        if row is None:
            row = rows[link] = _record_row(ask, event, system.name, link)
        row["records"] = int(str(row["records"])) + 1
        row["text"] = row["text"] or _line(systems.search_text(event))
    people = await ask.people(event.pubkey for event in found)
    data: dict[str, object] = {
        "systems": [system.name for system in systems.systems],
        "system": chosen if named else "",
        "by": ask.query.get("by", ""),
        "about": ask.query.get("about", ""),
        "q": ask.query.get("q", ""),
        "most": most,
        "is_full": any(each >= most for each in number.values()),
    }
    return Found(data, people, Rows(_COLUMNS, [*rows.values()], people))


def _key(ask: Ask, name: str) -> str | None:
    """Raises Invalid."""
    text = ask.query.get(name, "").strip()
    return public_key(text) if text else None


def _filters_of(ask: Ask, system: MemorySystem, most: int) -> list[Filter]:
    """Raises Invalid."""
    prefixes = sorted({record.prefix for record in system.records if record.prefix})
    given: dict[str, object] = {
        "kinds": sorted({record.kind for record in system.records}),
        "limit": most,
    }
    if prefixes:
        given["#d"] = prefixes
    if (author := _key(ask, "by")) is not None:
        given["authors"] = [author]
    if ask.query.get("q", "").strip():
        given["search"] = ask.query["q"].strip()
    about = _key(ask, "about")
    if about is None:
        wanted = [given]
    else:
        wanted = [{**given, "#p": [about]}]
        if system.name == "snowclaw":
            wanted.append({**given, "#d": user_ds(about)})
    return [filter_from(each, ask.services.terms) for each in wanted]


def _record_row(ask: Ask, event: Event, system: str, link: str) -> dict[str, object]:
    return {
        "title": cut(_title(event, system), 60),
        "link": link,
        "system": system,
        "text": "",
        "pubkey": event.pubkey,
        "created_at": event.created_at,
        "records": 0,
        "readers": readers_text(ask, event),
        "id": event.id,
    }


def _line(text: str | None) -> str:
    return cut(" ".join((text or "").split()), _LINE_CHARS)


def _title(event: Event, system: str) -> str:
    """What the page behind the row is about."""
    if event.kind in kinds.AMAN:
        return event.tag("hk") or event.d
    if system == "transcripts":
        return f"session {event.d}"
    if system == "nmem" and event.tag("s"):
        return f"session {event.tag('s')}"
    hashed = event.tag("x")
    if system == "anamnesis" and hashed is not None:
        return f"claim {hashed[:8]}…"
    name = _HASH.sub(lambda found: f"{found[0][:8]}…", event.d.removeprefix(f"{system}:"))
    return name or f"kind {event.kind}"


def _link(event: Event, system: str) -> str:
    """The view that shows the record among others of its kind."""
    hk, hashed, session = event.tag("hk"), event.tag("x"), event.tag("s")
    if event.kind in kinds.AMAN and hk:
        return "aman?" + urlencode({"hk": hk})
    if event.kind in (kinds.CONVERSATION_NOTE, kinds.SOURCE_DATA):
        return "session?" + urlencode({"id": event.d})
    if system == "anamnesis" and hashed and is_hex64(hashed):
        return f"claim?hash={hashed}"
    if system == "nmem" and session:
        return "nmem?" + urlencode({"session": session})
    return f"event?id={event.id}"


# -- Aman ------------------------------------------------------------------------------------------


async def _aman(ask: Ask) -> Found:
    hk = ask.query.get("hk", "")
    found = await ask.events_or_none(
        Filter(kinds=frozenset(kinds.AMAN), tags=(("hk", frozenset({hk})),), limit=_ROWS)
    )
    if not hk or not found:
        raise NotFoundError(_NOTHING)
    fold = Fold()
    async for event in ask.one_by_one(found):
        fold.apply(event)
    snapshot = fold.snapshot(hk)
    by_id = {event.id: event for event in found}

    def row(of: Row[Any] | None, **more: object) -> dict[str, object] | None:
        if of is None:
            return None
        readers = readers_text(ask, by_id[of.id])
        return {"id": of.id, "pubkey": of.author, "at": of.time, "readers": readers, **more}

    summary, preference = snapshot.summary, snapshot.preference
    data: dict[str, object] = {
        "hk": hk,
        "cleared_at": snapshot.cleared_at,
        "preference": preference and row(preference, text=preference.record.preference),
        "summary": summary
        and row(
            summary,
            text=summary.record.summary,
            messages=summary.record.message_count,
            is_cleared=summary.time <= (snapshot.cleared_at or 0),
        ),
        "tools": [
            row(
                each,
                name=each.record.tool_name,
                text=cut(each.record.content),
                is_success=each.record.success,
                is_cleared=each.time <= (snapshot.cleared_at or 0),
            )
            for each in snapshot.tools
        ],
        "clears": [row(each) for each in snapshot.clears],
        "unread": len(snapshot.unread),
    }
    return Found(data, await ask.people(event.pubkey for event in found))


# -- transcripts -----------------------------------------------------------------------------------


async def _session(ask: Ask) -> Found:
    session = ask.query.get("id", "")
    found = await ask.events_or_none(
        Filter(
            kinds=frozenset({kinds.CONVERSATION_NOTE}),
            tags=(("d", frozenset({session})),),
            limit=_ROWS,
        )
    )
    if not session or not found:
        raise NotFoundError(_NOTHING)
    archive = await ask.events_or_none(
        Filter(
            kinds=frozenset({kinds.SOURCE_DATA}),
            tags=(("d", frozenset({session})),),
            limit=_ROWS,
        )
    )
    chain = ordered(found)

    def drawn() -> list[Block]:
        lines = lines_of_notes(chain.events, archive, ".")
        return blocks(map(note_of, chain.events), lines)

    shown = await ask.in_thread(drawn)
    data: dict[str, object] = {
        "id": session,
        "blocks": [_block(each) for each in shown if not each.is_quiet],
        "has_several_authors": len({event.pubkey for event in found}) > 1,
        "notice": chain.notice or "",
        "readers": readers_text(ask, found[0]),
        "is_full": len(found) >= _ROWS,
    }
    return Found(data, await ask.people(event.pubkey for event in found))


def _block(block: Block) -> dict[str, object]:
    return {
        "id": block.id,
        "pubkey": block.author,
        "speaker": block.speaker.value,
        "title": cut(block.title),
        "at": block.ms // 1000,
        "model": cut(block.model or ""),
        "head": [cut(line) for line in block.head],
        "lines": [
            {"text": cut(line.text), "tone": line.tone.value} for line in block.lines[:_LINES]
        ],
        "more": max(len(block.lines) - _LINES, 0),
        "folds": block.folds,
    }


# -- nmem ------------------------------------------------------------------------------------------


async def _nmem(ask: Ask) -> Found:
    session = ask.query.get("session", "")
    both = frozenset({kinds.APP_DATA, kinds.APP_RECORD})
    found = await ask.events_or_none(
        Filter(kinds=both, tags=(("s", frozenset({session})),), limit=_ROWS)
    )
    found = [each for each in found if each.d.startswith((SESSION, OBSERVATION, PROMPT))]
    if not session or not found:
        raise NotFoundError(_NOTHING)
    names = frozenset(f"{PIN}{event.id}" for event in found)
    pins = await ask.events_or_none(
        Filter(kinds=frozenset({kinds.APP_DATA}), tags=(("d", names),), limit=_ROWS)
    )
    pinned = {
        record.event_id
        async for event in ask.one_by_one(pins)
        if isinstance(record := nmem_in(event), Pin) and record.is_pinned
    }
    whole: dict[str, object] | None = None
    timeline = []
    async for event in ask.one_by_one(found):
        line: dict[str, object] = {
            "id": event.id,
            "pubkey": event.pubkey,
            "at": event.created_at,
            "readers": readers_text(ask, event),
            "is_pinned": event.id in pinned,
        }
        match nmem_in(event):
            case Session() as record:
                summary = record.summary
                whole = {
                    "project": record.project,
                    "started_at": record.started_at,
                    "ended_at": record.ended_at,
                    "summary": None if summary is None else summary.fields(),
                    **line,
                }
            case Prompt() as record:
                timeline.append(
                    {
                        **line,
                        "type": f"prompt by the {record.source.value}",
                        "text": cut(record.content),
                        "file": "",
                        "at": record.timestamp,
                    }
                )
            case Observation() as record:
                timeline.append(
                    {
                        **line,
                        "type": record.obs_type,
                        "text": cut(record.content),
                        "file": record.file_path or "",
                        "at": record.timestamp,
                    }
                )
            case _:
                timeline.append({**line, "type": "unreadable", "text": "", "file": ""})
    timeline.sort(key=lambda each: int(str(each["at"])))
    data: dict[str, object] = {"session": session, "whole": whole, "timeline": timeline}
    return Found(data, await ask.people(event.pubkey for event in found))


# -- Anamnesis -------------------------------------------------------------------------------------


async def _claim(ask: Ask) -> Found:
    hashed = ask.query.get("hash", "")
    if not is_hex64(hashed):
        raise NotFoundError(_NOTHING)
    archive = await _archive(ask, hashed)
    claim = archive.original(hashed)
    if claim is None:
        raise NotFoundError(_NOTHING)
    traced = trace(hashed, archive)
    below = children(hashed, archive)
    successor = archive.successor(hashed)
    data: dict[str, object] = {
        "hash": hashed,
        "id": claim.event.id,
        "pubkey": claim.author,
        "created_at": claim.event.created_at,
        "text": claim.entry.content,
        "type": claim.entry.memory_type.value,
        "confidence": claim.entry.confidence,
        "tags": list(claim.entry.tags),
        "readers": readers_text(ask, claim.event),
        "superseded_by": None if successor is None else _brief(archive, successor.new),
        "vouches": [
            {
                "id": vouch.event.id,
                "pubkey": vouch.voucher,
                "at": vouch.event.created_at,
                "attestation": vouch.attestation.value,
                "confidence": vouch.confidence,
            }
            for vouch in archive.vouches.get(hashed, ())
        ],
        "parents": [_brief(archive, each) for each in claim.entry.parents],
        "children": [_brief(archive, each.hash) for each in below],
        "graph": _graph(hashed, [*traced.order, *(each.hash for each in below)], archive),
        "missing": len(traced.missing),
        "is_truncated": traced.truncated or len(traced.order) > MAX_NODES,
    }
    keys = [claim.author, *(vouch.voucher for vouch in archive.vouches.get(hashed, ()))]
    return Found(data, await ask.people(keys))


async def _archive(ask: Ask, hashed: str) -> Archive:
    """The claim, its ancestors, what rests on it, and what refers to them: as far as readable."""
    both = frozenset({kinds.APP_DATA, kinds.APP_RECORD})
    events: dict[str, Event] = {}
    wanted, asked = {hashed}, set[str]()
    while wanted - asked and len(asked) < _GRAPH_NODES:
        now = frozenset(sorted(wanted - asked)[:_GRAPH_NODES])
        asked |= now
        filters = [Filter(kinds=both, tags=(("x", now),), limit=_ROWS)]
        if hashed in now:
            filters.append(Filter(kinds=both, tags=(("X", frozenset({hashed})),), limit=_ROWS))
        for event in await ask.events_or_none(*filters):
            events[event.id] = event
            wanted.update(value for value in event.tag_values("X") if is_hex64(value))
            wanted.update(value for value in event.tag_values("x") if is_hex64(value))
    # The claim itself first: not everything may be read.
    own_first = sorted(events.values(), key=lambda event: event.tag("x") != hashed)
    readable = [
        record
        async for event in ask.one_by_one(own_first)
        if not isinstance(record := claim_in(event), UnreadableRecord)
    ]
    return archive_of(readable, ask.services.state.actors.owners, is_authoritative=True)


def _brief(archive: Archive, hashed: str) -> dict[str, object]:
    claim = archive.original(hashed)
    return {"hash": hashed, "text": "" if claim is None else cut(claim.entry.content, 120)}


def _graph(hashed: str, hashes: Iterable[str], archive: Archive) -> dict[str, object]:
    """Nodes in columns by their distance from the roots, edges from parents; for an SVG."""
    listed = [*dict.fromkeys(hashes)][:_GRAPH_NODES]
    level: dict[str, int] = {}
    for each in listed:  # parents come before children
        claim = archive.original(each)
        above = [] if claim is None else [level[p] for p in claim.entry.parents if p in level]
        level[each] = 1 + max(above) if above else 0
    columns: dict[int, list[str]] = {}
    for each in listed:
        columns.setdefault(level[each], []).append(each)
    width, height, gap = 200, 46, 36
    nodes, places = [], dict[str, tuple[int, int]]()
    for x, column in columns.items():
        for y, each in enumerate(column):
            places[each] = (x * (width + gap), y * (height + 16))
            claim = archive.original(each)
            text = "" if claim is None else " ".join(claim.entry.content.split())
            nodes.append(
                {
                    "hash": each,
                    "x": places[each][0],
                    "y": places[each][1],
                    "lines": _wrapped(text),
                    "is_this": each == hashed,
                    "is_old": archive.successor(each) is not None,
                }
            )
    edges = []
    for each in listed:
        claim = archive.original(each)
        for parent in () if claim is None else claim.entry.parents:
            if parent in places:
                (x1, y1), (x2, y2) = places[parent], places[each]
                edges.append([x1 + width, y1 + height // 2, x2, y2 + height // 2])
    most = max((len(column) for column in columns.values()), default=1)
    return {
        "nodes": nodes,
        "edges": edges,
        "node": [width, height],
        "width": max(columns, default=0) * (width + gap) + width,
        "height": most * (height + 16),
    }


def _wrapped(text: str) -> Sequence[str]:
    """Two lines of a node."""

    return textwrap.wrap(text, 30, max_lines=2, placeholder="…", break_long_words=True)


PAGES: Final = (
    Page(
        "memory",
        "Memory",
        "Records of every memory system, with who signed them and who may read them.",
        _memory,
        params={
            "system": "aman, transcripts, snowclaw, nmem or anamnesis",
            "by": "npub or 64 hex of the signer",
            "about": "npub or 64 hex of somebody whom the record names",
            "q": "words to search for (NIP-50)",
        },
        has_table=True,
        command="rookery memory search",
    ),
    Page(
        "aman",
        "Aman",
        "The records of one Aman conversation: preference, summary, tool calls, clears.",
        _aman,
        params={"hk": "history key"},
        in_menu=False,
    ),
    Page(
        "session",
        "Session",
        "A session of a coding agent as a conversation, tool calls folded.",
        _session,
        params={"id": "id of the session"},
        in_menu=False,
    ),
    Page(
        "nmem",
        "Session of nmem",
        "What a coding agent did in one session: prompts, observations, pins.",
        _nmem,
        params={"session": "id of the session"},
        in_menu=False,
    ),
    Page(
        "claim",
        "Claim",
        "A memory of Anamnesis: its sources, vouchers and successor.",
        _claim,
        params={"hash": "hash of the memory, 64 hex"},
        in_menu=False,
    ),
)
