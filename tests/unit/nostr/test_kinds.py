"""relay/nostr/kinds.py: the classes of kinds. N01-40…44."""

from __future__ import annotations

import pytest

from relay.nostr import kinds
from relay.nostr.kinds import ByKind, KindClass, class_of, is_ephemeral

CLASSES = {
    KindClass.REGULAR: [1, 2, 4, 44, 45, 999, 1000, 9999, 40000, 65535],
    KindClass.REPLACEABLE: [0, 3, 10000, 19999],
    KindClass.EPHEMERAL: [20000, 29999],
    KindClass.ADDRESSABLE: [30000, 39999],
}


@pytest.mark.proves("N01-40", "N01-41", "N01-42", "N01-43", "N01-44")
@pytest.mark.parametrize(
    ("kind", "its_class"), [(kind, cls) for cls, kinds in CLASSES.items() for kind in kinds]
)
def test_every_kind_has_its_class(kind: int, its_class: KindClass) -> None:
    """N01-40, N01-41, N01-42, N01-43, N01-44."""
    assert class_of(kind) is its_class
    assert is_ephemeral(kind) is (its_class is KindClass.EPHEMERAL)


def test_kinds_have_names() -> None:
    names = kinds.kind_names()
    assert (names[0], names[9], names[39000]) == ("profile", "chat", "group metadata")
    assert kinds.MAX_KIND not in names
    assert not any(isinstance(kind, bool) for kind in names)


def test_what_is_kept_for_kinds_is_bounded() -> None:
    """65,536 tiny events, each of another kind, took 90 MB for good."""
    kept = ByKind[str]()
    for kind in range(1024):
        kept[kind] = f"{kind}"
    assert kept[0] == "0"
    kept[1024] = "1024"
    assert kept == {1024: "1024"}
