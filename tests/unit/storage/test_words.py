"""Words of searches as conditions of PostgreSQL."""

from __future__ import annotations

from typing import Any

from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.nip50 import Search
from relay.storage.postgres.hashes import KeyedHashes
from relay.storage.postgres.sql.filters import Compiler
from relay.storage.postgres.sql.recall import Asking
from relay.storage.postgres.sql.words import Words
from relay.storage.rows import EVERYTHING
from relay.storage.tokens import Tokenizer


class Statements(list[str]):
    """A connection to an empty database."""

    async def fetch(self, sql: str, *_: Any) -> list[Any]:
        self.append(sql)
        return []


async def test_the_words_of_a_question_are_counted_without_an_array_of_each_text() -> None:
    """It takes 2 ms for a long text: with 250 of them, questions of four words took too long."""
    db, words = Statements(), Words(Tokenizer())
    compiler = Compiler(KeyedHashes(bytes(32)), words)
    filter_ = filter_from({"search": "match:any tea"}, FilterTerms(search=True))
    asking = Asking(db, compiler, words, filter_, EVERYTHING, upto=9, now=1)
    terms = ("tea", "green tea", "!!!")
    ranked = await asking.ranked([1], {term: Search((term,)) for term in terms})
    assert len(ranked.counted) == len(terms)
    (sql,) = db
    assert sql.count("strpos") >= 2
    assert "string_to_array" not in sql
