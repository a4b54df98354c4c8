"""The SQL composed for PostgreSQL for the queries × viewers of tests/golden/sql.py, in
tests/golden/sql_postgres.txt.

`python -m tests.golden.sql_postgres` prints how the file differs from what the code composes now,
and writes it. `‹a›` in a statement stands for the condition that says which rows the viewer may
read by the first filter; `member a=3`: for a member that is condition 3. `?` is a value.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.storage.postgres.hashes import KeyedHashes
from relay.storage.postgres.sql.filters import Compiler
from relay.storage.postgres.sql.parameters import Parameters, Query
from relay.storage.postgres.sql.words import Words
from relay.storage.sqlite.sql.conditions import Condition
from relay.storage.tokens import Tokenizer
from tests.golden import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.storage import PageQuery

GOLDEN: Final = Path(__file__).with_name("sql_postgres.txt")
_NUMBERED: Final = re.compile(r"\$\d+::")


class _Composing:
    """The compiler, with values that are not numbered: a condition reads alike everywhere."""

    def __init__(self) -> None:
        tokenizer = Tokenizer()
        self._compiler = Compiler(KeyedHashes(bytes(32)), Words(tokenizer))

    def page(self, query: PageQuery, _columns: str) -> Query:
        return _plain(self._compiler.page(query, ("raw",)))

    def visible(self, visibility: Visibility, filter_: Filter) -> Condition:
        p = Parameters()
        text = self._compiler.visible(visibility, filter_, p)
        values: Any = tuple([tuple(each) if isinstance(each, list) else each for each in p.values])
        return Condition(_NUMBERED.sub("?::", text), values)

    def count(self, filters: Sequence[Filter], visibility: Visibility, *, now: int) -> Query:
        return _plain(self._compiler.count(filters, visibility, upto=1000, now=now))

    def authors(self, filter_: Filter, visibility: Visibility, *, now: int, at_most: int) -> Query:
        return _plain(
            self._compiler.authors(filter_, visibility, upto=1000, now=now, at_most=at_most)
        )

    def __getattr__(self, name: str) -> Any:
        compose = getattr(self._compiler, name)
        return lambda *asked, **more: _plain(compose(*asked, **more))


def _plain(query: Query) -> Query:
    return Query(_NUMBERED.sub("?::", query.sql), query.values)


def composed() -> str:
    """What the file should hold."""
    return sql.text_of(str(__doc__), _Composing())


if __name__ == "__main__":
    sql.update(GOLDEN, composed())
