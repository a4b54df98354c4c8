"""What the log and the traces say of a batch: what it was, by which requests, and which groups it
changed."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, Final, assert_never

from relay.groups.group import EndedGroup
from relay.observe import request_id
from relay.write.commands import (
    ExpireRows,
    ManagementChange,
    SignLists,
    SweepRows,
    SweepVersions,
    WriteEvent,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.groups.group import Group, Groups
    from relay.observe.traces import Traces
    from relay.write.batch import Batch
    from relay.write.commands import LaneItem

_log = logging.getLogger(__name__)

_MAX_TRACED: Final = 32
"""Requests that the span of a batch names."""


def trace(traces: Traces, items: Sequence[LaneItem], batch: Batch) -> None:
    requests = [request_of(item).get("request", "") for item in items[:_MAX_TRACED]]
    traces.span(
        "batch",
        (
            ("lookup", batch.taken_at, batch.began_at),
            ("decide", batch.began_at, batch.decided_at),
            ("commit", batch.decided_at, batch.stored_at),
            ("deliver", batch.stored_at, perf_counter()),
        ),
        changes=len(items),
        rows=len(batch.rows),
        requests=[*filter(None, requests)],
    )


def request_of(item: LaneItem) -> Mapping[str, str]:
    """The id of the request that brought the item, for the log."""
    if isinstance(item, WriteEvent) and item.author.connection is not None and item.message:
        return {"request": request_id(item.author.connection, item.message)}
    return {}


def name_of(item: LaneItem) -> str:
    """What the item is, for the log."""
    match item:
        case WriteEvent():
            return f"an event of kind {item.event.kind}"
        case ManagementChange():
            return "a NIP-86 call"
        case ExpireRows():
            return "removal of expired rows"
        case SweepRows() | SweepVersions():
            return "sweep"
        case SignLists():
            return "signing of lists"
        case _:
            assert_never(item)


def log_changes(before: Groups, changed: Mapping[str, Group | EndedGroup]) -> None:
    """Log changed flags and metadata of groups (N29-48, N29-101, Z-05)."""
    for group_id, group in changed.items():
        was = before.get(group_id)
        if was is None or isinstance(group, EndedGroup):
            continue
        if was.only_members_read and not group.only_members_read:
            _log.warning("group %r is public now: everyone may read all its events", group_id)
        if (was.flags, was.metadata) != (group.flags, group.metadata):
            _log.info(
                "group %r: flags %s, metadata %s; before: flags %s, metadata %s",
                group_id,
                *(_joined(group.flags), _joined({tag[0] for tag in group.metadata})),
                *(_joined(was.flags), _joined({tag[0] for tag in was.metadata})),
            )


def _joined(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "none"
