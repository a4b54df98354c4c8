"""An immutable map, of which a change copies only a part: anybody may add a hundred thousand keys
to a group, or make as many groups, and each record changes only some of the entries."""

from __future__ import annotations

from collections.abc import ItemsView, Mapping, Set
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_K = TypeVar("_K")
_V = TypeVar("_V")

_FEW: Final = 512
"""Up to this many keys are held in one dict."""
_PARTS: Final = 256
_EMPTY: Final[tuple[dict[Any, Any], ...]] = ({},)


class KeyMap(Mapping[_K, _V]):
    """Without an order. Keys are split by their hash, once there are more than a few."""

    __slots__ = ("_size", "parts")

    def __init__(self, items: Mapping[_K, _V] | None = None) -> None:
        self.parts: tuple[dict[_K, _V], ...] = (dict(items),) if items else _EMPTY
        self._size = len(self.parts[0])

    def __getitem__(self, key: _K) -> _V:
        parts = self.parts
        return parts[hash(key) % len(parts)][key]

    def get(self, key: _K, default: Any = None) -> Any:
        parts = self.parts
        return parts[hash(key) % len(parts)].get(key, default)

    def __contains__(self, key: object) -> bool:
        parts = self.parts
        return key in parts[hash(key) % len(parts)]

    def among(self, keys: Iterable[_K]) -> frozenset[_K]:
        """Those of the keys that are here, in less time than as many look-ups."""
        parts, number = self.parts, len(self.parts)
        return frozenset([key for key in keys if key in parts[hash(key) % number]])

    def __iter__(self) -> Iterator[_K]:
        return chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping) and len(other) != self._size:
            return False  # else both would be copied
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as that of every mapping

    def items(self) -> ItemsView[_K, _V]:
        return _Items(self)

    def changed(self, added: Mapping[_K, _V], removed: Iterable[_K] = ()) -> Self:
        """With these items, also in place of others, and without these keys."""
        parts, copied, size = list(self.parts), set[int](), self._size
        number = len(parts)

        def part_of(key: _K) -> dict[_K, _V]:
            at = hash(key) % number
            if at not in copied:
                copied.add(at)
                parts[at] = dict(parts[at])
            return parts[at]

        for key in removed:
            if key in parts[hash(key) % number]:
                del part_of(key)[key]
                size -= 1
        for key, value in added.items():
            part = part_of(key)
            size += key not in part
            part[key] = value
        return self._of(parts, size) if copied else self

    def without(self, keys: Iterable[_K]) -> Self:
        return self.changed({}, keys)

    def differing(self, other: KeyMap[_K, _V]) -> set[_K]:
        """Keys in only one of the maps, or whose values are different objects. Parts that both maps
        share are skipped."""
        mine, others = self.parts, other.parts
        if len(mine) != len(others):
            mine, others = (dict(self.items()),), (dict(other.items()),)
        pairs = [pair for pair in zip(mine, others, strict=True) if pair[0] is not pair[1]]
        return {
            key
            for one, two in pairs
            for key in one.keys() | two.keys()
            if one.get(key) is not two.get(key)
        }

    @classmethod
    def _of(cls, parts: list[dict[_K, _V]], size: int) -> Self:
        if len(parts) == 1 and size > _FEW:
            (whole,) = parts
            parts = [{} for _ in range(_PARTS)]
            for key, value in whole.items():
                parts[hash(key) % _PARTS][key] = value
        new = cls()
        new.parts, new._size = tuple(parts), size
        return new


class _Items(ItemsView[_K, _V]):
    """Without a look-up for each: a request to join is compared with 10,000 codes."""

    _mapping: KeyMap[_K, _V]

    def __iter__(self) -> Iterator[tuple[_K, _V]]:
        return chain.from_iterable(part.items() for part in self._mapping.parts)


class KeySet(Set[_K]):
    """A set that is changed as a KeyMap is. What is computed of it is a frozenset."""

    __slots__ = ("_map",)

    def __init__(self, keys: KeyMap[_K, None]) -> None:
        self._map = keys

    def __contains__(self, key: object) -> bool:
        return key in self._map

    def __iter__(self) -> Iterator[_K]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

    def __and__(self, other: object) -> frozenset[_K]:
        if not isinstance(other, Set):
            return NotImplemented
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        return frozenset(key for key in few if key in many)

    __rand__ = __and__

    @classmethod
    def _from_iterable(cls, keys: Iterable[Any]) -> Set[Any]:
        return frozenset(keys)

    def changed(self, added: Iterable[_K], removed: Iterable[_K]) -> KeySet[_K]:
        return KeySet(self._map.changed(dict.fromkeys(added), removed))


def changed_set(keys: Set[_K], added: Set[_K], removed: Set[_K]) -> Set[_K]:
    """With these keys, and without those that are removed: a frozenset of few, a KeySet of more."""
    if isinstance(keys, KeySet):
        return keys.changed(added, removed)
    left = keys - removed if removed else keys
    new = frozenset(left | added if left else added)
    return new if len(new) <= _FEW else KeySet(KeyMap(dict.fromkeys(new)))


class OrderedMap(KeyMap[_K, _V]):
    """Also knows the order in which its keys were added."""

    __slots__ = ("_next", "_numbers")

    def __init__(self, items: Mapping[_K, _V] | None = None) -> None:
        super().__init__(items)
        self._numbers: KeyMap[_K, int] | None = None
        """None while there is one part, a dict, which has the order itself."""
        self._next = 0

    def changed(self, added: Mapping[_K, _V], removed: Iterable[_K] = ()) -> Self:
        gone = [*removed]
        new = super().changed(added, gone)
        if new is self or len(new.parts) == 1:
            return new
        numbers, begin = self._numbers, self._next
        if numbers is None:
            numbers, begin = KeyMap({key: n for n, key in enumerate(self)}), self._size
        numbers = numbers.without(gone)
        fresh = [key for key in added if key not in numbers]
        new._numbers = numbers.changed({key: begin + n for n, key in enumerate(fresh)})
        new._next = begin + len(fresh)
        return new

    def in_order(self, keys: Iterable[_K] | None = None) -> Iterable[_K]:
        """The keys, or these of them, first those that were added first. `keys`: in the order of
        `self`."""
        left = self if keys is None else keys
        return left if self._numbers is None else sorted(left, key=self._numbers.__getitem__)


class TwoWayMap(KeyMap[_K, _V]):
    """Also finds the key of a value. No two keys have the same value."""

    __slots__ = ("keys_of",)

    def __init__(self, items: Mapping[_K, _V] | None = None) -> None:
        super().__init__(items)
        self.keys_of: KeyMap[_V, _K] = KeyMap({value: key for key, value in (items or {}).items()})

    def changed(self, added: Mapping[_K, _V], removed: Iterable[_K] = ()) -> Self:
        removed = [*removed]
        old = [self[key] for key in chain(removed, added) if key in self]
        new = super().changed(added, removed)
        new.keys_of = self.keys_of.changed({value: key for key, value in added.items()}, old)
        return new
