"""Parameters of a statement for PostgreSQL."""

from __future__ import annotations

from relay.storage.postgres.sql.parameters import Late, Parameters


class Watched(Late):
    """Counts how often it is compared."""

    compared = 0

    __hash__ = Late.__hash__

    def __eq__(self, other: object) -> bool:
        Watched.compared += 1
        return super().__eq__(other)


def test_a_late_value_has_one_place() -> None:
    p = Parameters()
    assert [p.add(Late("tag", tag), "bigint[]") for tag in (0, 1, 0)] == [
        "$1::bigint[]",
        "$2::bigint[]",
        "$1::bigint[]",
    ]


def test_a_value_is_not_compared_with_all_before_it() -> None:
    """The 2,500 of a COUNT with 50 filters took 0.4 s of the event loop."""
    p = Parameters()
    for number in range(1000):
        p.add(Watched("tag", number), "bigint[]")
    assert Watched.compared < 100
