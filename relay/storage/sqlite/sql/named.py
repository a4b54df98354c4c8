"""The statements of the `.sql` files here by their names, and the scripts beside them."""

from __future__ import annotations

from typing import Final

from relay.storage.named_sql import SqlFiles

FILES: Final = SqlFiles("relay.storage.sqlite.sql")

QUERIES: Final = FILES.statements("queries.sql")
SEARCH_QUERIES: Final = FILES.statements("search.sql")
VERIFY_QUERIES: Final = FILES.statements("verify.sql")
"""All SQL of the store: whole statements and scripts as `.sql` files, composed text as modules.

Text is composed of fixed pieces. Values are bound, but for the numbers of policy files.
tests/unit/storage/test_sql_in_one_place.py finds SQL elsewhere; tests/golden/sql.txt shows what is
composed.
"""
