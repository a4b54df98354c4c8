"""Filter: parsed once, used for live events and for stores. NIP-01 (N01-60…72), NIP-50.

Invariant: `matches` defines a filter; storage compiles the same fields to SQL, and a property test
compares the two.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import force_setattr

from relay.errors import Invalid, Unsupported
from relay.nostr.event import is_hex64
from relay.nostr.nip50 import MAX_QUERY, Search, search_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relay.nostr.event import Event

_HEX_TAGS: Final = frozenset("ep")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
BROAD_TAGS: Final = frozenset("hptkKPlLmr")
"""Tags whose values many events share: `authors` is more selective than they are."""
_MAX_SQL_INT: Final = 2**63 - 1
MAX_PREFIXES: Final = 256
"""`d_prefixes` of a filter: each is compared with every event of its kinds."""
_TERM_BYTES: Final = 80
_PERIOD_BYTES: Final = 144
"""Of a `Search`, for each term beside its text, and for each of its `near`."""
_MAX_SHARED: Final = 8
"""Kinds of a set that filters share."""


class FilterTerms(msgspec.Struct, frozen=True):
    """What a filter may name beyond NIP-01 on this relay."""

    index_tags: frozenset[str] = frozenset({"hk"})
    prefix_d_kinds: frozenset[int] = frozenset({30078, 78})
    search: bool = False
    """NIP-50 is supported; without it the key is refused, not ignored (N50-12)."""


def _type_of(values: Collection[object]) -> type[frozenset[str]] | type[tuple[str, ...]]:
    """See `Filter`."""
    return tuple if len(values) == 1 else frozenset


class Filter(msgspec.Struct, frozen=True, gc=False):
    """All conditions must hold; None is no condition. An empty collection matches nothing (N01-67).

    Values have no order and none occurs twice. One value alone is in a tuple, which takes a quarter
    of the memory of a set: most subscriptions that stay open name one author or one tag value.

    A Struct because each REQ makes one: 0.2 us, a frozen dataclass takes 2 us.
    """

    ids: Collection[str] | None = None
    authors: Collection[str] | None = None
    kinds: frozenset[int] | None = None
    since: int | None = None
    until: int | None = None
    limit: int | None = None
    search: str | None = None
    """None also when it was a text without terms, which is no condition."""
    tags: tuple[tuple[str, Collection[str]], ...] = ()
    """(tag name without `#`, values), sorted by name."""
    d_prefixes: tuple[str, ...] = ()
    """`#d` values that match as a prefix too (G-09); `tags` has them as well."""
    impossible: bool = False
    """A list is empty: nothing can match."""
    first_tag_value: str | None = None
    """First value, in the order received, of the only tag condition; None with several or none. The
    HyperLogLog offset depends on it (N45-11, N45-15)."""
    values: int = 0
    """Number of values in its conditions; stored, because each REQ uses it several times."""
    is_wide: bool = False
    """Without id, author and tag: live, it is compared with every event, or every one of its kinds.
    Stored too."""
    sought: Search | None = None
    """`search`, parsed once for all who need it: up to 0.5 ms."""

    def __post_init__(self) -> None:
        number = 0
        sought = None if self.search is None else search_from(self.search)
        if sought is None:
            force_setattr(self, "search", None)
        force_setattr(self, "sought", sought)
        ids, authors = self.ids, self.authors
        if ids is not None:
            number += len(ids)
            if type(ids) is not _type_of(ids):
                force_setattr(self, "ids", _type_of(ids)(ids))
        if authors is not None:
            number += len(authors)
            if type(authors) is not _type_of(authors):
                force_setattr(self, "authors", _type_of(authors)(authors))
        if self.kinds is not None:
            number += len(self.kinds)
        is_changed = False
        for _, values in self.tags:
            number += len(values)
            is_changed |= type(values) is not _type_of(values)
        if is_changed:
            tags = [(name, _type_of(values)(values)) for name, values in self.tags]
            force_setattr(self, "tags", tuple(tags))
        force_setattr(self, "values", number)
        force_setattr(self, "is_wide", ids is None and authors is None and not self.tags)

    def matches(self, event: Event) -> bool:
        """Every condition holds, except `limit` and `search`, which are not checked."""
        if self.kinds is not None and event.kind not in self.kinds:
            return False
        if self.authors is not None and event.pubkey not in self.authors:
            return False
        if self.ids is not None and event.id not in self.ids:
            return False
        if self.since is not None and event.created_at < self.since:
            return False
        if self.until is not None and event.created_at > self.until:
            return False
        return all(self._tag_holds(event, name, values) for name, values in self.tags)

    def _tag_holds(self, event: Event, name: str, values: Collection[str]) -> bool:
        if event.has_value(name, values):
            return True
        return name == "d" and bool(self.d_prefixes) and event.d.startswith(self.d_prefixes)

    def tag_values(self, name: str) -> Collection[str] | None:
        for key, values in self.tags:
            if key == name:
                return values
        return None


def filter_from(value: object, terms: FilterTerms) -> Filter:
    """One filter of a REQ or COUNT. Raises Invalid (a value) or Unsupported (a key)."""
    if type(value) is not dict:
        raise Invalid("filter: must be a JSON object")
    ids = authors = kinds = None
    since = until = limit = None
    search = None
    tags: list[tuple[str, Collection[str]]] = []
    for key, given in value.items():
        if key == "kinds":
            kinds = _kinds(given)
        elif key == "authors":
            authors = _hex_list(key, given)
        elif key == "ids":
            ids = _hex_list(key, given)
        elif key == "since":
            since = _integer(key, given)
        elif key == "until":
            until = _integer(key, given)
        elif key == "limit":
            limit = _integer(key, given)
            if limit < 0:
                raise Invalid("limit: must not be negative")
        elif key == "search":
            if type(given) is not str:
                raise Invalid("search: must be a string")
            if given and not terms.search:
                raise Unsupported("search is not supported here")
            search = given[:MAX_QUERY]
        elif key[:1] == "#" and (key[1:] in _LETTERS or key[1:] in terms.index_tags):
            name = key[1:]
            values = _hex_list(key, given) if name in _HEX_TAGS else _strings(key, given)
            tags.append((name, values))
        else:
            raise Unsupported("filter contains unknown elements")
    tags.sort()
    return Filter(
        ids,
        authors,
        kinds,
        since,
        until,
        limit,
        search,
        tuple(tags),
        _d_prefixes(tags, kinds, terms),
        impossible=(
            (ids is not None and not ids)
            or (authors is not None and not authors)
            or (kinds is not None and not kinds)
            or any(not values for _, values in tags)
        ),
        first_tag_value=value[f"#{tags[0][0]}"][0] if len(tags) == 1 and tags[0][1] else None,
    )


def _d_prefixes(
    tags: list[tuple[str, Collection[str]]], kinds: frozenset[int] | None, terms: FilterTerms
) -> tuple[str, ...]:
    if not kinds or not kinds <= terms.prefix_d_kinds:
        return ()
    for name, values in tags:
        if name == "d":
            prefixes = tuple(sorted(value for value in values if value.endswith(":")))
            if len(prefixes) > MAX_PREFIXES:
                raise Invalid(f"#d: at most {MAX_PREFIXES} values that end with a colon")
            return prefixes
    return ()


def _list(key: str, given: object) -> list[object]:
    if type(given) is not list:
        raise Invalid(f"{key}: must be an array")
    return given


def _hex_list(key: str, given: object) -> Collection[str]:
    values = _list(key, given)
    for value in values:
        if not is_hex64(value):
            raise Invalid(f"{key}: every value must be 64 lowercase hex characters")
    return _type_of(values)(values)  # type: ignore[arg-type]


def _strings(key: str, given: object) -> Collection[str]:
    values = _list(key, given)
    for value in values:
        if type(value) is not str:
            raise Invalid(f"{key}: every value must be a string")
    return _type_of(values)(values)  # type: ignore[arg-type]


def _kinds(given: object) -> frozenset[int]:
    values = _list("kinds", given)
    for value in values:
        # orjson parses an integer over 64 bits as a float; it matches nothing (N01-68).
        if type(value) is float and value.is_integer() and abs(value) > _MAX_SQL_INT:
            continue
        if type(value) is not int:
            raise Invalid("kinds: every value must be an integer")
    known = tuple([value for value in values if type(value) is int and 0 <= value <= 65535])
    if not known:
        return frozenset({-1}) if values else frozenset()
    return _shared(known) if len(known) <= _MAX_SHARED else frozenset(known)


@lru_cache(maxsize=1024)
def _shared(kinds: tuple[int, ...]) -> frozenset[int]:
    """One set for all filters with these kinds: it takes 216 bytes or more, and there are few."""
    return frozenset(kinds)


def _integer(key: str, given: object) -> int:
    if type(given) is float and given.is_integer() and abs(given) > _MAX_SQL_INT:
        given = int(given)
    if type(given) is not int:
        raise Invalid(f"{key}: must be an integer")
    return max(-_MAX_SQL_INT, min(given, _MAX_SQL_INT))


def text_bytes(filters: Sequence[Filter]) -> int:
    """Memory that tag values and searches take, and what these are parsed to."""
    size = 0
    for each in filters:
        for _, values in each.tags:
            size += sum(map(_bytes_of, values))
        if each.search is not None and each.sought is not None:
            size += _bytes_of(each.search) + _bytes_of(each.sought.asked)
            for term in each.sought.required + each.sought.excluded:
                size += _TERM_BYTES + _bytes_of(term)
            size += _PERIOD_BYTES * len(each.sought.near)
    return size


def _bytes_of(text: str) -> int:
    """All characters take as many as the widest, up to four."""
    return len(text) if text.isascii() else 4 * len(text)


def as_json(filter_: Filter) -> Mapping[str, object]:
    """The filter as a client would send it."""
    out: dict[str, object] = {}
    for key in ("ids", "authors", "kinds"):
        values = getattr(filter_, key)
        if values is not None:
            out[key] = sorted(values)
    for key in ("since", "until", "limit", "search"):
        if getattr(filter_, key) is not None:
            out[key] = getattr(filter_, key)
    for name, values in filter_.tags:
        out[f"#{name}"] = sorted(values)
    return out
