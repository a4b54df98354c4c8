"""The fence around recalled text in a prompt: data for the model, not instructions (G-23)."""

from __future__ import annotations

import re
from html import escape
from typing import Final

_TAG: Final = re.compile(r"<(?=[\s/]*memory\b)", re.IGNORECASE)
_LINES: Final = re.compile(r"\s+")


def fenced(text: str, source: str, author: str) -> str:
    """The text between `<memory source=… author=…>` and `</memory>`.

    Text that looks like either tag becomes `&lt;…`, so that it cannot close the fence.
    """
    head = f'<memory source="{_attribute(source)}" author="{_attribute(author)}">'
    return f"{head}\n{_TAG.sub('&lt;', text)}\n</memory>"


def _attribute(value: str) -> str:
    return escape(_LINES.sub(" ", value))
