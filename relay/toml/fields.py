"""Typed access to a TOML table; every wrong value becomes a Fault with its line.

Invariants: a reader returns the typed value, or None after it recorded a fault; nothing raises. A
fault has file, line, what is wrong and the nearest valid word.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Final, TypeVar

from relay.errors import ConfigFaults, Fault, Invalid
from relay.nostr.keys import public_key
from relay.nostr.kinds import MAX_KIND, KindSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.toml.lines import Path

Network = IPv4Network | IPv6Network
E = TypeVar("E", bound=Enum)

_MAX_LISTED: Final = 12
"""Known words listed in a fault."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """`; did you mean "x"?`, or the known words."""
    words = sorted(set(valid))
    close = get_close_matches(word, words, n=1, cutoff=0.55)
    if close:
        return f'; did you mean "{close[0]}"?'
    if not words:
        return ""
    more = ", …" if len(words) > _MAX_LISTED else ""
    return "; known: " + ", ".join(words[:_MAX_LISTED]) + more


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is being read, and its faults."""

    name: str
    lines: Mapping[Path, int]
    faults: list[Fault]
    packaged: bool = False
    """Shipped with Rookery: may use keys that admins may not."""

    def fault(self, path: Path, text: str) -> None:
        self.faults.append(Fault(self.name, self.line(path), text))

    def check(self) -> None:
        """Raises ConfigFaults with all faults, in the order of their lines."""
        if self.faults:
            raise ConfigFaults(sorted(self.faults, key=lambda fault: fault.line))

    def line(self, path: Path) -> int:
        """The line of the key, or of the nearest table around it; 0 when unknown."""
        while path:
            found = self.lines.get(path)
            if found is not None:
                return found
            path = path[:-1]
        return 0


class Table:
    """A TOML table and its path in the file."""

    def __init__(self, source: Source, path: Path, values: Mapping[str, object]) -> None:
        self.source = source
        self.path = path
        self.values = values

    @property
    def line(self) -> int:
        return self.source.line(self.path)

    @property
    def label(self) -> str:
        """`[limits]`, `[[rule]]`, `match`."""
        if self.path and isinstance(self.path[-1], int):
            names = [str(part) for part in self.path if not isinstance(part, int)]
            return f"[[{'.'.join(names)}]]" if len(self.path) <= 3 else names[-1]
        if len(self.path) > 2:
            return str(self.path[-1])
        return f"[{'.'.join(str(part) for part in self.path)}]" if self.path else "this file"

    def has(self, key: str) -> bool:
        return key in self.values

    def wrong(self, key: str, text: str) -> None:
        self.source.fault((*self.path, key), text)

    def refuse_unknown(self, known: Iterable[str]) -> None:
        valid = list(known)
        for key in self.values:
            if key not in valid:
                self.wrong(key, f'unknown key "{key}" in {self.label}{nearest(key, valid)}')

    def not_offered(self, key: str) -> None:
        self.wrong(key, f'"{key}" in {self.label} is not offered by this version')

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if isinstance(value, str) and value:
            return value
        if key in self.values:
            self.wrong(key, f"{key} must {'not be empty' if value == '' else 'be a string'}")
        return None

    def boolean(self, key: str) -> bool | None:
        value = self.values.get(key)
        if isinstance(value, bool):
            return value
        if key in self.values:
            self.wrong(key, f"{key} must be true or false")
        return None

    def integer(self, key: str, minimum: int = 0) -> int | None:
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value < 2**63:
            return value
        if key in self.values:
            self.wrong(key, f"{key} must be an integer of at least {minimum}")
        return None

    def choice(self, key: str, words: type[E]) -> E | None:
        value = self.values.get(key)
        if key not in self.values:
            return None
        for word in words:
            if word.value == value:
                return word
        valid = [str(word.value) for word in words]
        hint = nearest(value, valid) if isinstance(value, str) else nearest("", valid)
        self.wrong(key, f"{key} cannot be {value!r}{hint}")
        return None

    def strings(self, key: str) -> Sequence[str] | None:
        """A list of strings; a single string counts as a list of one."""
        value = self.values.get(key)
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        if key in self.values:
            self.wrong(key, f"{key} must be a list of strings")
        return None

    def list_of(self, key: str, words: type[E]) -> frozenset[E] | None:
        values = self.strings(key)
        if values is None:
            return None
        by_name = {str(word.value): word for word in words}
        for number, value in enumerate(values):
            if value not in by_name:
                self.wrong_item(
                    key, number, f'unknown word "{value}" in {key}{nearest(value, by_name)}'
                )
        return frozenset(by_name[value] for value in values if value in by_name)

    def wrong_item(self, key: str, number: int, text: str) -> None:
        self.source.fault((*self.path, key, number), text)

    def keys(self, key: str) -> frozenset[str] | None:
        """Public keys as hex, given as npub or hex."""
        values = self.strings(key)
        if values is None:
            return None
        found = set()
        for number, value in enumerate(values):
            hexed = self.key_of(key, number, value)
            if hexed is not None:
                found.add(hexed)
        return frozenset(found)

    def key_of(self, key: str, number: int, value: str) -> str | None:
        if value.strip().lower().startswith("nsec"):
            # The value is not quoted: faults are logged and printed.
            self.wrong_item(
                key,
                number,
                f"{key}: this is a secret key (nsec); remove it from this "
                "file and use the public key (npub)",
            )
            return None
        try:
            return public_key(value)
        except Invalid as wrong:
            self.wrong_item(key, number, f"{key}: {wrong.text}")
            return None

    def networks(self, key: str) -> tuple[Network, ...] | None:
        values = self.strings(key)
        if values is None:
            return None
        found: list[Network] = []
        for number, value in enumerate(values):
            try:
                found.append(ip_network(value))
            except ValueError:
                self.wrong_item(key, number, f"{key}: {value!r} is not a CIDR block{_meant(value)}")
        return tuple(found)

    def kinds(self, key: str) -> KindSet | None:
        """Numbers and ranges: `[1, "9000-9022"]`."""
        value = self.values.get(key)
        if key not in self.values:
            return None
        if not isinstance(value, list):
            self.wrong(key, f'{key} must be a list of numbers and ranges like "9000-9022"')
            return None
        parts: list[tuple[int, int]] = []
        for number, item in enumerate(value):
            span = _span(item)
            if span is None:
                self.wrong_item(
                    key,
                    number,
                    f'{key}: {item!r} is not a kind (0 to {MAX_KIND}) or a range like "9000-9022"',
                )
            else:
                parts.append(span)
        return KindSet.of(*parts)

    def table(self, key: str) -> Table | None:
        value = self.values.get(key)
        if isinstance(value, dict):
            return Table(self.source, (*self.path, key), value)
        if key in self.values:
            self.wrong(key, f"{key} must be a table")
        return None

    def tables(self, key: str) -> Sequence[Table]:
        """One table or a list of tables."""
        value = self.values.get(key)
        if isinstance(value, dict):
            return [Table(self.source, (*self.path, key), value)]
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return [
                Table(self.source, (*self.path, key, number), item)
                for number, item in enumerate(value)
            ]
        if key in self.values:
            self.wrong(key, f"{key} must be a table or a list of tables")
        return []


def _span(item: object) -> tuple[int, int] | None:
    if isinstance(item, bool):
        return None
    if isinstance(item, int):
        return (item, item) if 0 <= item <= MAX_KIND else None
    if not isinstance(item, str):
        return None
    low, dash, high = item.partition("-")
    if not (dash and low.strip().isdecimal() and high.strip().isdecimal()):
        return None
    first, last = int(low), int(high)
    return (first, last) if first <= last <= MAX_KIND else None


def _meant(value: str) -> str:
    """Suggests the network of a block with host bits set."""
    try:
        return f'; did you mean "{ip_network(value, strict=False)}"?'
    except ValueError:
        return ' (like "10.1.2.0/24")'
