"""Paths below the directory of a session, as tokens that another machine can fill in. D-20…D-24.

Works on the raw text of a line, never on parsed JSON: what has no token is not touched, so that a
line comes back to the byte. After tokenising, each `${` of the text is the start of a token.
"""

from __future__ import annotations

import json
import re
from typing import Final

from relay.memory.fields import object_in

VERSION: Final = "cwd-token-v1"

_TOKEN: Final = re.compile(r"\$\{(?:CWD|CWD:e|D)\}")
_AFTER: Final = r"(?![A-Za-z0-9_\-]|[^\x00-\x7f]|\.[A-Za-z0-9_])"
_IN_A_NAME: Final = re.compile(r"[A-Za-z0-9_.\-/]|[^\x00-\x7f]")


def escaped(path: str) -> str:
    """As it stands between the quotes of a JSON string."""
    return json.dumps(path, ensure_ascii=False)[1:-1]


class PathTokens:
    """Puts tokens for one directory."""

    __slots__ = ("_base", "_forms", "_pattern", "_token_of")

    def __init__(self, base: str) -> None:
        """`base` without trailing `/`; empty when none is known."""
        plain = escaped(base)
        slashed = plain.replace("/", r"\/")
        self._base = base
        self._token_of = {slashed: "${CWD:e}", plain: "${CWD}", "${": "${D}{"}
        self._token_of.pop("", None)
        self._forms = tuple(self._token_of)
        bases = "|".join(re.escape(form) for form in self._forms if form != "${")
        self._pattern = re.compile(rf"(?:{bases}){_AFTER}|\$\{{" if bases else r"\$\{")

    def tokenised(self, text: str) -> str:
        """The raw text of a line with tokens in it."""
        if not any(form in text for form in self._forms):
            return text
        return self._pattern.sub(self._token, text)

    def relative(self, cwd: str) -> str:
        """What the tag `cwd` says: `.`, a path below the base, or the path as it is (D-22)."""
        path = cwd.rstrip("/")
        if not self._base:
            return cwd
        if path == self._base:
            return "."
        # A path of Windows has no `/`; one of anything else may have `\` inside a name.
        separator = "/" if "/" in self._base or "\\" not in self._base else "\\"
        below = self._base + separator
        return path.removeprefix(below) if path.startswith(below) else cwd

    def _token(self, found: re.Match[str]) -> str:
        form = found[0]
        if form != "${" and _is_inside_a_name(found.string, found.start()):
            return form.replace("${", "${D}{")  # a base may have `${` in its name
        return self._token_of[form]


def _is_inside_a_name(text: str, start: int) -> bool:
    """Whether the letter before belongs to the path: `/mnt/w/rook` is not `/w/rook`."""
    if start == 0 or _IN_A_NAME.match(text, start - 1) is None:
        return False
    if text[start - 1] not in "nrtbf":
        return True
    # The letter of an escape is none of the path, that of an escaped backslash and a letter is.
    backslashes = start - 1
    while backslashes and text[backslashes - 1] == "\\":
        backslashes -= 1
    return (start - 1 - backslashes) % 2 == 0


class Directory:
    """Where an export shall seem to have run."""

    __slots__ = ("_text_of", "path")

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") or path
        plain = escaped(self.path)
        self._text_of = {"${CWD}": plain, "${CWD:e}": plain.replace("/", r"\/"), "${D}": "$"}

    def restored(self, text: str) -> str:
        """The raw text of a line, its tokens filled in."""
        if "${" not in text:
            return text
        return _TOKEN.sub(lambda found: self._text_of[found[0]], text)


def with_field(text: str, name: str, value: str) -> str:
    """The raw text of a JSON object with one text field of its own set, all else as it is.

    Without that field, or when it is no text: unchanged.
    """
    field = re.compile(rf'(?<!\\)("{re.escape(name)}"\s*:\s*)"(?:[^"\\]|\\.)*"')
    fields = object_in(text)
    if fields is None or not isinstance(fields.get(name), str):
        return text
    # The same name may stand in objects inside, and twice: the one that counts is the one whose
    # change shows, alone, in what is read.
    for found in field.finditer(text):
        changed = f'{text[: found.end(1)]}"{escaped(value)}"{text[found.end() :]}'
        try:
            if object_in(changed) == {**fields, name: value}:
                return changed
        except RecursionError:  # nested too deep to be compared
            return text
    return text
