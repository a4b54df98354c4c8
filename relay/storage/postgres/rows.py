"""Rows of the events table as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relay.storage import rows

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from relay.lifecycle.rows import Present, Slot, Stored


def stored(row: Sequence[Any]) -> Stored:
    """The row with these columns: seq, raw, grp, quiet, slot, version, expires_at."""
    seq, raw, grp, quiet, slot, version, expires_at = row
    group = None if grp is None else grp.decode()
    return rows.stored((seq, raw, group, quiet, slot, version, expires_at))


def present(
    row: Sequence[Any], wanted: Container[str | Slot]
) -> Iterator[tuple[str | Slot, Present]]:
    """(name, facts) of a row: id, pubkey, kind, d, slot, grp, expires_at, created_at."""
    id_, pubkey, kind, d, slot, grp, expires_at, at = row
    group = None if grp is None else grp.decode()
    return rows.present((id_, pubkey, kind, d.decode(), slot, group, expires_at, at), wanted)


def columns(rows: Sequence[tuple[Any, ...]], number: int) -> list[list[Any]]:
    """Lists for `unnest`."""
    return [[row[column] for row in rows] for column in range(number)]
