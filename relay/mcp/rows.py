"""JSON of observations in tool results: previews in lists, full text for few (M-29).

What another key wrote has `author`: its name and the beginning of its npub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from relay.client.recall import SYSTEMS
from relay.memory.fence import attribution, fenced
from relay.memory.fields import compact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.client.claims import Provenance
    from relay.client.nmem.queries import Found, FoundPrompt
    from relay.client.recall import Hit
    from relay.memory.nmem.records import Session

_PREVIEW: Final = 120
"""Characters."""
_FIELD: Final = 200
_LISTED: Final = 10
"""Characters of a field, and entries of one, that another key wrote: it may have 390,000."""
_NAME: Final = 2048
"""Characters of a `d`, as this relay takes at most."""
_RECALLED: Final = 1000
"""Characters of a record of any system."""
_PROMPT: Final = 500
"""Characters of a prompt."""
_TRACE: Final = 400
"""Prompts and observations of one trace."""
_SAID: Final = 500
"""Characters of what a relay says."""


def said(text: str, url: str) -> str:
    """A refusal or fault that quotes a relay, which may be anybody's: one line in a fence."""
    return fenced(" ".join(text.split())[:_SAID], "relay", url)


def hit(found: Found) -> dict[str, Any]:
    """A list entry: enough to choose by."""
    entry = {
        "id": found.id,
        "timestamp": found.timestamp,
        "obs_type": found.obs_type,
        "content_preview": found.content[:_PREVIEW],
        "file_path": found.file_path,
        "session_id": found.session_id,
        "is_pinned": found.is_pinned,
        "event_id": found.event_id,
    }
    return _by(found.author) | _short(entry, found.author)


def _short(fields: dict[str, Any], author: str) -> dict[str, Any]:
    """The fields; of another key not all of long ones."""
    return {name: _beginning(value) for name, value in fields.items()} if author else fields


def _beginning(value: Any) -> Any:
    match value:
        case str():
            return value[:_FIELD]
        case list():
            return [_beginning(each) for each in value[:_LISTED]]
        case dict():
            return compact(value)[:_FIELD]
        case _:
            return value


def _by(author: str) -> dict[str, str]:
    """The first field: who cuts an object, as a recorded conversation does, keeps it."""
    return {"author": author} if author else {}


def recalled(found: Hit, reader: str) -> dict[str, Any]:
    """A record of any memory system. `reader`: public key; others have `author`."""
    event, claim = found.event, found.provenance
    unread = {"provenance": "could not be read"} if found.hashed else {}
    about = unread if claim is None else _of_claim(claim)
    by = _by("" if event.pubkey == reader else attribution(event.pubkey))
    return by | {
        "system": SYSTEMS[found.system].name,
        "timestamp": event.created_at,
        "text": found.text.strip()[:_RECALLED],
        "d": event.d[:_NAME],
        "group": (event.tag("h") or "")[:_NAME] or None,
        "event_id": event.id,
        "copies": found.copies,
        **about,
    }


def _of_claim(claim: Provenance) -> dict[str, Any]:
    return {
        "superseded_by": claim.superseded_by,
        # Any agent may let thousands of its memories be superseded by one.
        "supersedes": list(claim.supersedes[:_LISTED]),
        "vouched_by": [attribution(str(each["id"])) for each in claim.vouchers[:_LISTED]],
    }


def hits(found: Sequence[Found]) -> list[dict[str, Any]]:
    return [hit(each) for each in found]


def whole(found: Found) -> dict[str, Any]:
    """All fields of one observation."""
    return _by(found.author) | {
        "id": found.id,
        "timestamp": found.timestamp,
        "session_id": found.session_id,
        "project": found.project,
        "prompt_id": found.prompt_id,
        "obs_type": found.obs_type,
        "source_event": found.source_event,
        "tool_name": found.tool_name,
        "file_path": found.file_path,
        "content": found.content,
        "metadata": found.metadata,
        "is_pinned": found.is_pinned,
        "event_id": found.event_id,
    }


def summarised(session: Session, author: str = "") -> dict[str, Any]:
    """`author`: as of `Found`."""
    fields = {
        "session_id": session.id,
        "project": session.project,
        "started_at": session.started_at,
        "ended_at": session.ended_at,
    }
    summary = None if session.summary is None else _short(session.summary.fields(), author)
    return _by(author) | _short(fields, author) | {"summary": summary}


def traced(
    session: Session,
    prompts: Sequence[FoundPrompt],
    observations: Sequence[Found],
    author: str = "",
) -> dict[str, Any]:
    """A session in order: its prompts, each with the observations that followed. Observations
    without a prompt are under `system`. `more_after`: where to continue a truncated trace."""
    steps = sorted(
        [(each.timestamp, 0, each.id) for each in prompts]
        + [(each.timestamp, 1, each.id) for each in observations]
    )
    kept = set(steps[:_TRACE])
    shown = {
        each.id: _by(each.author)
        | _prompt(each.id, each.timestamp, each.source, _cut(each.content))
        for each in prompts
        if (each.timestamp, 0, each.id) in kept
    }
    apart: list[dict[str, Any]] = []
    for each in observations:
        if (each.timestamp, 1, each.id) not in kept:
            continue
        if each.prompt_id is not None and each.prompt_id in shown:
            shown[each.prompt_id]["observations"].append(hit(each))
        else:
            if not apart:
                apart.append(_prompt(None, each.timestamp, "system", None))
            apart[0]["observations"].append(hit(each))
    ordered = sorted([*shown.values(), *apart], key=lambda prompt: prompt["timestamp"])
    for prompt in ordered:
        prompt["observation_count"] = len(prompt["observations"])
    trace = summarised(session, author) | {"prompts": ordered}
    return trace if len(steps) <= _TRACE else trace | {"more_after": steps[_TRACE][0]}


def _prompt(number: int | None, timestamp: int, source: str, content: str | None) -> dict[str, Any]:
    return {
        "prompt_id": number,
        "timestamp": timestamp,
        "source": source,
        "content": content,
        "observation_count": 0,
        "observations": [],
    }


def _cut(text: str) -> str:
    return text if len(text) <= _PROMPT else f"{text[:_PROMPT]}…"


def by_session(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Observations of a file grouped by session, in the order given."""
    sessions: dict[str, dict[str, Any]] = {}
    for each in found:
        about = {"session_id": each.session_id, "project": each.project, "touches": []}
        session = sessions.setdefault(each.session_id, _short(about, each.author))
        session["touches"].append(hit(each))
    return list(sessions.values())
