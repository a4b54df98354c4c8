"""Session files, and the signed events that encode them."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING

from relay.memory.transcripts.assembly import Assembly, assembled
from relay.memory.transcripts.lines import raw_lines, session_facts
from relay.memory.transcripts.paths import Directory
from relay.memory.transcripts.transcript import Transcript
from tests.cast import robot

if TYPE_CHECKING:
    from relay.memory.transcripts.plan import Plan
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

HOME = "/w/rook"
SESSION = "s-1"
NOW_MS = 1_700_000_000_123


def line(type_: str = "user", **fields: object) -> bytes:
    """One line as claude-code writes them; `message` may be given as its content alone."""
    message = fields.pop("message", "hello")
    if not isinstance(message, dict):
        message = {"role": type_, "content": message}
    all_fields = {
        "cwd": HOME,
        "sessionId": SESSION,
        "type": type_,
        "message": message,
        "timestamp": "2026-02-09T20:43:35.675Z",
        **fields,
    }
    return json.dumps(all_fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def text_block(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def call_block(id_: str, name: str, **given: object) -> dict[str, object]:
    return {"type": "tool_use", "id": id_, "name": name, "input": given}


def result_block(id_: str, content: object) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


def transcript(
    data: bytes, plan: Plan | None = None, *, now_ms: int = NOW_MS, by: SecretKey = robot
) -> Transcript:
    return Transcript(
        by.pubkey, session_facts(raw_lines(data)), stem="the-stem", now_ms=now_ms, plan=plan
    )


def told(
    data: bytes, plan: Plan | None = None, *, now_ms: int = NOW_MS, by: SecretKey = robot
) -> list[Event]:
    """The events of a whole file, signed."""
    script = transcript(data, plan, now_ms=now_ms, by=by)
    drafts = chain.from_iterable(script.drafts(raw) for raw in raw_lines(data))
    return [by.sign(*draft) for draft in drafts]


def notes(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == 1988]


def archive(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == 1989]


def file_of(assembly: Assembly, path: str = HOME) -> bytes:
    return b"".join(assembly.file(Directory(path)))


def there_and_back(data: bytes, plan: Plan | None = None) -> bytes:
    """The file that comes out of a file's events, told and put together for the same directory."""
    base = session_facts(raw_lines(data)).base or "/"
    return file_of(assembled(told(data, plan)), base)
