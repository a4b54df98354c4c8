"""The statements of the `.sql` files here by their names, and the scripts beside them."""

from __future__ import annotations

from typing import Final

from relay.storage.named_sql import SqlFiles

FILES: Final = SqlFiles("relay.storage.postgres.sql")
QUERIES: Final = FILES.statements("queries.sql")
READ_QUERIES: Final = FILES.statements("reading.sql")
SEARCH_QUERIES: Final = FILES.statements("search.sql")
