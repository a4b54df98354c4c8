"""Tokens of texts, as FTS5 makes them."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from relay.storage.tokens import Tokenizer


@pytest.mark.parametrize("letter", ["é", "茶", "𝄞", "x"])
def test_of_a_word_that_is_cut_the_beginning_is_a_token(letter: str) -> None:
    """FTS5 cuts it after 32 KiB, perhaps within a letter."""
    tokenizer = Tokenizer()
    text = f"a{letter * 40_000} tea"
    (tokens,) = tokenizer.tokens([text])
    assert tokens == tokenizer.tokens([text])[0]
    assert tokens[-1] == "tea"
    assert tokenizer.listed(text).endswith(" tea ")
    tokenizer.close()


@pytest.mark.slow
def test_it_may_be_closed_while_a_thread_uses_it() -> None:
    """A task that ends leaves its thread behind. SQLite would crash the process."""
    texts = [f"word{number} " * 50 for number in range(400)]
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            tokenizer = Tokenizer()
            working = pool.submit(tokenizer.tokens, texts)
            while not working.running() and not working.done():
                pass
            tokenizer.close()
            error = working.exception()
            assert error is None or isinstance(error, sqlite3.ProgrammingError)
            with pytest.raises(sqlite3.ProgrammingError):
                tokenizer.tokens(texts)
