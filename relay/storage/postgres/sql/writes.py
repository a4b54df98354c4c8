"""Statements of the writer that are composed: sums over `sizes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.storage.postgres.sql.parameters import Parameters

if TYPE_CHECKING:
    from relay.access.quotas import Account
    from relay.storage.postgres.sql.parameters import Query


def usage_of(account: Account) -> Query:
    """events and bytes of an account without a recipient."""
    values = Parameters()
    parts = []
    if account.pubkey is not None:
        parts.append(f"pubkey = {values.add(bytes.fromhex(account.pubkey), 'bytea')}")
    if isinstance(account.h, bool):
        parts.append("grp <> ''" if account.h else "grp = ''")
    elif account.h is not None:
        groups = values.add([group.encode() for group in sorted(account.h)], "bytea[]")
        parts.append(f"grp <> '' AND grp = ANY({groups})")
    if account.kinds is not None:
        spans = [f"kind BETWEEN {low:d} AND {high:d}" for low, high in account.kinds.ranges]
        parts.append(f"({' OR '.join(spans) or 'false'})")
    where = " AND ".join(parts) or "true"
    return values.query(
        "SELECT coalesce(sum(events), 0)::bigint, coalesce(sum(bytes), 0)::bigint"
        f" FROM sizes WHERE {where}"
    )
