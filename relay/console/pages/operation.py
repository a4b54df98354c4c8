"""Live, Health: what the relay does and how it is. For owners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from relay.console.charts import drawn
from relay.console.page import Audience, Found, Page
from relay.console.tables import Column, Holds, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.console.ask import Ask
    from relay.observe import CostlyRead

_REFUSALS: Final = (
    Column("at", "When", Holds.TIME),
    Column("pubkey", "Who", Holds.PERSON),
    Column("kind", "Kind", Holds.KIND),
    Column("group", "Group", Holds.GROUP),
    Column("text", "Answer"),
    Column("rule", "Rule"),
    Column("address", "From", Holds.CODE),
)
_FINDINGS: Final = (Column("check", "Check"), Column("text", "Finding"))
_LOG_LINES: Final = 100
_READS: Final = 20


async def _live(ask: Ask) -> Found:
    view = ask.for_owner
    status, refused, lines = await asyncio.gather(view.status(), view.refusals(), view.log_lines())
    connections = view.connections()
    keys = [key for each in connections for key in _keys_of(each["keys"])]
    people = await ask.people([*keys, *(each.author for each in refused)])
    rows: list[dict[str, object]] = [
        {
            "at": each.at,
            "pubkey": each.author,
            "kind": each.kind,
            "group": each.group or "",
            "text": f"{each.prefix}: {each.text}",
            "rule": each.rule,
            "address": each.address or "",
        }
        for each in reversed(refused)
    ]
    data: dict[str, object] = {
        "connections": connections,
        "reads": _reads(status.reads),
        "waiting": int(status.numbers.get("events_waiting", 0)),
        "log": [
            {"at": each.at, "level": each.level, "logger": each.logger, "text": each.text}
            for each in [*lines][-_LOG_LINES:]
        ],
    }
    return Found(data, people, Rows(_REFUSALS, rows, people))


def _keys_of(value: object) -> list[str]:
    return [*value] if isinstance(value, list) else []


def _reads(reads: Sequence[CostlyRead]) -> list[dict[str, object]]:
    return [
        {
            "shape": each.shape,
            "seconds": round(each.seconds, 3),
            "longest_ms": round(1000 * each.longest_s, 1),
            "rows": each.rows,
        }
        for each in [*reads][:_READS]
    ]


async def _health(ask: Ask) -> Found:
    view = ask.for_owner
    status, disk, findings, retention = await asyncio.gather(
        view.status(), view.disk(), view.findings(), view.retention()
    )
    data: dict[str, object] = {
        "problems": dict(status.problems),
        "plugins": dict(status.plugins),
        "findings": findings,
        "disk": disk,
        "retention": retention,
        "day": drawn(view.day(), ask.now),
        "up_s": int(status.up_s),
        "version": status.version,
        "is_in_database": view.is_in_database,
    }
    return Found(data)


async def _verify(ask: Ask) -> Found:
    last = ask.for_owner.verification()
    report = last.get("report") or {}
    rows: list[dict[str, object]] = [
        {"check": each["check"], "text": each["text"]} for each in report.get("findings", ())
    ]
    data: dict[str, object] = {
        "began_at": last.get("began_at"),
        "ended_at": last.get("ended_at"),
        "done": last.get("done", 0),
        "total": last.get("total", 0),
        "failure": last.get("failure", ""),
        "is_verified": bool(report),
        "events": report.get("events", 0),
        "counts": report.get("counts", {}),
        "search_checked": report.get("search_checked", False),
        "is_in_database": ask.for_owner.is_in_database,
    }
    return Found(data, table=Rows(_FINDINGS, rows))


PAGES: Final = (
    Page(
        "live",
        "Live",
        "Refused events with their reasons, connections, costly queries, the log.",
        _live,
        audience=Audience.OWNER,
        has_table=True,
        command="rookery log",
    ),
    Page(
        "health",
        "Health",
        "Findings with cures, charts of the last day, disk, backups, events due for removal.",
        _health,
        audience=Audience.OWNER,
        command="rookery doctor",
    ),
    Page(
        "verify",
        "Verify",
        "Result of checking every event, signature, table and index.",
        _verify,
        audience=Audience.OWNER,
        has_table=True,
        in_menu=False,
        command="rookery verify",
    ),
)
