"""Small files in the shapes that other memory tools write, by hand."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

BASIC_MEMORY: Final = """---
title: Coffee Brewing Methods
type: note
permalink: coffee/brewing-methods
tags:
- coffee
- brewing
created: '2026-02-18T09:00:00+01:00'
modified: '2026-02-18T10:00:00+01:00'
---

# Coffee Brewing Methods

## Observations
- [method] Pour over gives more clarity than a French press
- [technique] Water at 96 °C extracts best #brewing (from a tasting)

## Relations
- relates_to [[Coffee Bean Origins]]
- "contrasts with" [[Tea]] (by habit)
"""
BREWED: Final = 1_771_405_200
"""When it was modified."""

NOMEN: Final = """---
d_tag: group/techteam/deploy-process
topic: deploy-process
visibility: group
scope: techteam
version: 3
created_at: 2026-03-19T16:00:00Z
updated_at: 2026-03-19T18:00:00Z
---
We deploy on Tuesdays, never on Fridays.
"""
NOMEN_LIST: Final = {
    "count": 1,
    "memories": [
        {
            "topic": "deploy-process",
            "content": "We deploy on Tuesdays, never on Fridays.",
            "visibility": "group",
            "scope": "techteam",
            "version": 3,
            "created_at": "2026-03-19T16:00:00Z",
            "d_tag": "group/techteam/deploy-process",
        }
    ],
}

MEM0: Final[dict[str, Any]] = {
    "results": [
        {
            "id": "892db2ae-06d9-49e5-8b3e-585ef9b85b8e",
            "memory": "Likes to play cricket on weekends",
            "hash": "285d07801ae42054732314853e9eadd7",
            "metadata": {"category": "hobbies"},
            "score": None,
            "created_at": "2026-02-18T00:00:00.123456-07:00",
            "updated_at": None,
            "user_id": "alice",
        },
        {
            "id": "13efe83b-a8df-4ec0-814e-428d6e8451eb",
            "memory": "Is vegetarian",
            "hash": "4f9bd1cb8a2e8c5b2ac1e3a4e1ba7c2c",
            "metadata": None,
            "created_at": "2026-02-18T07:00:00Z",
            "updated_at": "2026-02-19T07:00:00Z",
            "user_id": "alice",
            "categories": ["food", "health"],
        },
    ]
}
MEM0_MARKDOWN: Final = """---
id: abc123
created_at: 2026-02-18T00:00:00Z
type: task_learnings
confidence: 0.9
branch: main
files: src/foo.py, src/bar.py
categories: coding_conventions, task_learnings
---
Tests run with `make test`.

---

A rule belongs to the text.

---
id: def456
created_at: 2026-02-19T00:00:00Z
type:
confidence:
branch:
files:
categories:
---
The port is 7777.

"""

_MS: Final = 1_771_405_200_000
"""Of claude-mem."""
CLAUDE_MEM: Final[dict[str, Any]] = {
    "exportedAt": "2026-02-18T10:00:00.000Z",
    "exportedAtEpoch": _MS,
    "query": "kettle",
    "totalObservations": 2,
    "totalSessions": 1,
    "totalSummaries": 2,
    "totalPrompts": 1,
    "sessions": [
        {
            "id": 1,
            "content_session_id": "5c1f0e8a-6f2b-4b1c-9d0e-000000000001",
            "memory_session_id": "mem-1",
            "project": "kettle",
            "platform_source": "claude",
            "user_prompt": "fix the kettle",
            "started_at": "2026-02-18T09:00:00.000Z",
            "started_at_epoch": _MS,
            "completed_at": None,
            "completed_at_epoch": None,
            "status": "active",
        }
    ],
    "prompts": [
        {
            "id": 7,
            "content_session_id": "5c1f0e8a-6f2b-4b1c-9d0e-000000000001",
            "prompt_number": 1,
            "prompt_text": "fix the kettle",
            "created_at": "2026-02-18T09:00:01.000Z",
            "created_at_epoch": _MS + 1_000,
        }
    ],
    "summaries": [
        {
            "id": 1,
            "memory_session_id": "mem-1",
            "project": "kettle",
            "request": "Find the leak",
            "investigated": "The seal",
            "learned": "It is old",
            "completed": "",
            "next_steps": "Replace it",
            "files_read": None,
            "files_edited": None,
            "notes": None,
            "prompt_number": 1,
            "created_at": "2026-02-18T09:01:00.000Z",
            "created_at_epoch": _MS + 60_000,
        },
        {
            "id": 2,
            "memory_session_id": "mem-1",
            "project": "kettle",
            "request": "Fix the kettle",
            "investigated": "The seal and the lid",
            "learned": "Seals last a year",
            "completed": "Replaced the seal",
            "next_steps": "Descale in May",
            "files_read": '["src/seal.py"]',
            "files_edited": '["src/lid.py"]',
            "notes": None,
            "prompt_number": 1,
            "created_at": "2026-02-18T09:02:00.000Z",
            "created_at_epoch": _MS + 120_000,
        },
    ],
    "observations": [
        {
            "id": 11,
            "memory_session_id": "mem-1",
            "project": "kettle",
            "text": None,
            "type": "bugfix",
            "title": "Kettle no longer leaks",
            "subtitle": "The seal was worn",
            "facts": '["The seal is made of silicone", "It lasts a year"]',
            "narrative": "Replaced the seal and ran the tests.",
            "concepts": '["problem-solution"]',
            "files_read": '["src/seal.py"]',
            "files_modified": '["src/lid.py"]',
            "prompt_number": 1,
            "discovery_tokens": 0,
            "created_at": "2026-02-18T09:01:30.000Z",
            "created_at_epoch": _MS + 90_000,
        },
        {
            "id": 12,
            "memory_session_id": "mem-2",
            "project": "teapot",
            "text": "The old form has text alone",
            "type": "discovery",
            "title": None,
            "subtitle": None,
            "facts": None,
            "narrative": None,
            "concepts": None,
            "files_read": None,
            "files_modified": None,
            "prompt_number": None,
            "discovery_tokens": 0,
            "created_at": "2026-02-18T09:03:00.000Z",
            "created_at_epoch": _MS + 180_000,
        },
    ],
}
_TABLES: Final = {
    "sessions": "sdk_sessions",
    "prompts": "user_prompts",
    "summaries": "session_summaries",
    "observations": "observations",
}


def claude_mem_database(path: Path) -> Path:
    """The same rows, as the tool's own database has them."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        for name, table in _TABLES.items():
            rows = CLAUDE_MEM[name]
            columns = list(rows[0])
            db.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            marks = ", ".join("?" for _ in columns)
            db.executemany(
                f"INSERT INTO {table} VALUES ({marks})",
                [tuple(row[column] for column in columns) for row in rows],
            )
        db.commit()
    return path


def as_json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode()
