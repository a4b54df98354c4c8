"""Path tokens: the session's directory in lines, replaced for another machine (D-20…D-24).

Invariants: works on the raw text of a line, never on parsed JSON, so that a line is restored byte
by byte. In tokenised text each `${` starts a token.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from relay.nostr.event import object_of_any_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.memory.transcripts.stripping import StrippedLine

VERSION: Final = "cwd-token-v1"
RELATIVE: Final = "cwd-relative-v1"
"""The specification's form: `.` for the directory, at the places that the tag names."""

MAX_GROWTH: Final = 2**28
"""Characters that the lines of one session may grow by when their tokens are replaced. Both the
lines and the directory are texts of others: 500 kB could become gigabytes."""
_PLACE: Final = re.compile(r"(\d{1,9})(e?)", re.ASCII)
_TOKEN: Final = re.compile(r"\$\{(?:CWD|CWD:e|D)\}")
_TOKEN_OF_JSON: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|[{}\[\]]')
_AFTER: Final = r"(?![A-Za-z0-9_\-]|[^\x00-\x7f]|\.[A-Za-z0-9_])"
_HOME: Final = re.compile(r"/(?:home|Users)/[^/]+|/root|[A-Za-z]:[\\/]Users[\\/][^\\/]+")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z]:[\\/]|\\\\")
_IN_A_NAME: Final = re.compile(r"[A-Za-z0-9_.\-/]|[^\x00-\x7f]")
_NESTED: Final = re.compile(r"[^\\/][\\/]+[^\\/]")
_BEFORE_NAME: Final = r"(?:(?<![A-Za-z0-9_\-])|(?<=\\[nrt]))"
"""A letter may be that of an escape."""


def is_absolute(path: str) -> bool:
    """Whether a path is absolute, on any system."""
    return _ABSOLUTE.match(path) is not None


def escaped(path: str) -> str:
    """The path as it is written between the quotes of a JSON string."""
    return json.dumps(path, ensure_ascii=False)[1:-1]


def _folder_name(path: str) -> str:
    """What claude-code calls its folder for a directory: `-home-ann-rook`."""
    return re.sub(r"[^A-Za-z0-9]", "-", path)


class PathTokens:
    """Replaces one directory with tokens."""

    __slots__ = ("_base", "_forms", "_pattern", "_token_of")

    def __init__(self, base: str, homes: Iterable[str] = ()) -> None:
        """`base`: without trailing `/`; empty if unknown. `homes`: replaced with `~`."""
        self._base = base
        plain = escaped(base)
        own = {plain.replace("/", r"\/"): "${CWD:e}", plain: "${CWD}"}
        forms = [
            form for home in homes for form in (escaped(home).replace("/", r"\/"), escaped(home))
        ]
        # The directory first: it may be in one of the homes.
        self._token_of = {**own, **{form: own.get(form, "~") for form in forms}, "${": "${D}{"}
        self._token_of.pop("", None)
        self._forms = tuple(self._token_of)
        bases = "|".join(re.escape(form) for form in self._forms if form != "${")
        self._pattern = re.compile(rf"(?:{bases}){_AFTER}|\$\{{" if bases else r"\$\{")

    def tokenised(self, text: str) -> str:
        """The raw text of a line with tokens."""
        if not any(form in text for form in self._forms):
            return text
        return self._pattern.sub(self._token, text)

    def relative(self, cwd: str) -> str:
        """The value of tag `cwd`: `.`, a path relative to the base, or the path itself (D-22)."""
        path = cwd.rstrip("/")
        if not self._base:
            return cwd
        if path == self._base:
            return "."
        # Windows paths have no `/`; other paths may have `\` in a name.
        separator = "/" if "/" in self._base or "\\" not in self._base else "\\"
        below = self._base + separator
        return path.removeprefix(below) if path.startswith(below) else cwd

    def _token(self, found: re.Match[str]) -> str:
        form = found[0]
        if form != "${" and _is_inside_a_name(found.string, found.start()):
            return form.replace("${", "${D}{")  # the base itself may contain `${`
        return self._token_of[form]


class HidingTokens(PathTokens):
    """Also hides home directories, as `~`, a `cwd` outside of the session's directory, and what
    claude-code calls its folders for homes and for that directory."""

    __slots__ = ("_keeping", "_names", "_sign_of")

    def __init__(self, base: str, homes: Iterable[str] = ()) -> None:
        """`homes`: hidden beside the one that the directory is in."""
        found = _HOME.match(base)
        all_homes = [home.rstrip("/") for home in ("" if found is None else found[0], *homes)]
        super().__init__(base, [home for home in all_homes if home])
        self._keeping = PathTokens(base)
        # The directory first: it may be in one of the homes.
        signs = {base: "-"} | dict.fromkeys(all_homes, "~")
        # A single name is no secret, and would be found in `-root`, an option.
        self._sign_of = {_folder_name(path): signs[path] for path in signs if _NESTED.search(path)}
        names = "|".join(map(re.escape, self._sign_of))
        self._names = re.compile(rf"{_BEFORE_NAME}(?:{names})(?![A-Za-z0-9])") if names else None

    def _token(self, found: re.Match[str]) -> str:
        token = super()._token(found)
        return "~" if token == found[0] else token  # after other names too: file:///home/ann

    def tokenised(self, text: str) -> str:
        text = super().tokenised(text)
        if self._names is not None:
            text = self._names.sub(lambda found: self._sign_of[found[0]], text)
        fields = object_of_any_size(text) if '"cwd"' in text else None
        cwd = None if fields is None else fields.get("cwd")
        is_elsewhere = isinstance(cwd, str) and is_absolute(cwd)
        return with_field(text, "cwd", "${CWD}") if is_elsewhere else text

    def shown(self, line: StrippedLine) -> StrippedLine:
        """The line with fields for notes, in which the directory is `.`."""
        if line.text is None or line.fields is None:
            return line
        return replace(line, fields=object_of_any_size(relative(self.tokenised(line.text))[0]))

    def hides(self, text: str) -> bool:
        """Whether a line differs from what `PathTokens` makes of it."""
        return self.tokenised(text) != self._keeping.tokenised(text)


def _is_inside_a_name(text: str, start: int) -> bool:
    """Whether the character before is part of the path: `/mnt/w/rook` is not `/w/rook`."""
    if start == 0 or _IN_A_NAME.match(text, start - 1) is None:
        return False
    if text[start - 1] not in "nrtbf":
        return True
    # The letter of an escape is no part of the path; after an escaped backslash it is.
    backslashes = start - 1
    while backslashes and text[backslashes - 1] == "\\":
        backslashes -= 1
    return (start - 1 - backslashes) % 2 == 0


def relative(tokenised: str) -> tuple[str, str]:
    """The text with `.` for each token of the directory, and the places of these dots for
    `with_tokens`: offsets in code points, each followed by `e` for a token with `\\/`."""
    parts: list[str] = []
    places: list[str] = []
    end = size = 0
    for found in _TOKEN.finditer(tokenised):
        parts += tokenised[end : found.start()], "$" if found[0] == "${D}" else "."
        size += found.start() - end + 1
        end = found.end()
        if parts[-1] == ".":
            places.append(f"{size - 1}{'e' if found[0] == '${CWD:e}' else ''}")
    return "".join((*parts, tokenised[end:])), ",".join(places)


def with_tokens(text: str, places: str) -> str | None:
    """The reverse of `relative`; None if they do not fit together."""
    parts: list[str] = []
    end = 0
    for place in places.split(",") if places else ():
        found = _PLACE.fullmatch(place)
        at = -1 if found is None else int(found[1])
        if found is None or at < end or text[at : at + 1] != ".":
            return None
        parts += text[end:at].replace("${", "${D}{"), "${CWD:e}" if found[2] else "${CWD}"
        end = at + 1
    return "".join((*parts, text[end:].replace("${", "${D}{")))


class Directory:
    """The directory that replaces tokens in an export."""

    __slots__ = ("_text_of", "path")

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") or path
        plain = escaped(self.path)
        self._text_of = {"${CWD}": plain, "${CWD:e}": plain.replace("/", r"\/"), "${D}": "$"}

    def growth(self, text: str) -> int:
        """Most characters that `restored` adds."""
        return text.count("${CWD") * len(self._text_of["${CWD:e}"])

    def restored(self, text: str) -> str:
        """The raw text of a line with its tokens replaced. See `MAX_GROWTH`."""
        if "${" not in text:
            return text
        return _TOKEN.sub(lambda found: self._text_of[found[0]], text)


def with_field(text: str, name: str, value: str) -> str:
    """The raw text of a JSON object with one of its string fields replaced.

    Unchanged if the field is missing or no string.
    """
    fields = object_of_any_size(text)
    if fields is None or not isinstance(fields.get(name), str):
        return text
    place = _place_of_value(text, name)
    if place is None:
        return text
    changed = f'{text[: place.start()]}"{escaped(value)}"{text[place.end() :]}'
    try:
        # Not so where the name occurs once more, written with escapes.
        return changed if object_of_any_size(changed) == {**fields, name: value} else text
    except RecursionError:  # nested too deeply to compare
        return text


def _place_of_value(text: str, name: str) -> re.Match[str] | None:
    """The string that a valid JSON object has under `name`, none that is nested in it; of several
    the last, as parsers have it. One pass: a line may have the name a thousand times."""
    key, depth, is_next, found = f'"{name}"', 0, False, None
    for token in _TOKEN_OF_JSON.finditer(text):
        mark, is_key = token[0][0], token[1] is not None
        if mark == '"':
            if is_next and not is_key:
                found = token
            is_next = is_key and depth == 1 and token[0].startswith(key)
        else:
            depth += 1 if mark in "{[" else -1
            is_next = False
    return found
