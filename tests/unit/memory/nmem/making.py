"""Records and events for the tests of nmem."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from relay.memory.nmem.records import Observation
from tests.cast import robot
from tests.contract.writing import unsigned

if TYPE_CHECKING:
    from relay.nostr.event import Event

NOW = 1_772_000_000
MINUTE, HOUR, DAY = 60, 3600, 86_400

OBSERVATION: dict[str, Any] = {
    "session_id": "s",
    "prompt": None,
    "timestamp": NOW,
    "obs_type": "command",
    "source_event": "PostToolUse",
    "tool_name": "Bash",
    "file_path": None,
    "content": "make",
    "metadata": None,
}
PROMPT: dict[str, Any] = {
    "session_id": "s",
    "timestamp": NOW,
    "source": "user",
    "content": "hello",
}
SESSION: dict[str, Any] = {
    "id": "s",
    "project": "rook",
    "started_at": NOW,
    "ended_at": None,
    "signature": None,
    "summary": None,
}

MADE = Observation("s", NOW, "command", "PostToolUse", "make", "Bash")
"""What `OBSERVATION` says."""


def observation(**changed: Any) -> Event:
    return hashed("nmem:obs:", json.dumps(OBSERVATION | changed))


def prompt(**changed: Any) -> Event:
    return hashed("nmem:prompt:", json.dumps(PROMPT | changed))


def session(**changed: Any) -> Event:
    fields = SESSION | changed
    return event(30078, f"nmem:session:{fields['id']}", json.dumps(fields))


def pin(event_id: str, content: str = '{"pinned":true,"at":1}') -> Event:
    return event(30078, f"nmem:pin:{event_id}", content)


def hashed(prefix: str, content: str) -> Event:
    session_id = json.loads(content).get("session_id")
    return event(78, f"{prefix}{session_id}:{sha256(content.encode()).hexdigest()}", content)


def event(kind: int, d: str, content: str) -> Event:
    return unsigned(robot, kind, [["d", d]], content, NOW)
