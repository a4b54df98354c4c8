"""What is said of the group records of a file, and how much of it is held."""

from __future__ import annotations

from io import BytesIO

import orjson
import pytest

from relay.cli import group_records
from relay.cli.group_records import GroupRecords
from relay.errors import UserError
from relay.groups.actions import MAX_ID_CHARS
from tests.cast import alice

ID = "ab" * 32
MADE = "abababab-abab-4bab-abab-abababababab"


def test_the_first_h_of_an_event_is_its_group() -> None:
    records = GroupRecords()
    records.add(9007, [["name", "x"], ["h", "tea"], ["h", "pot"]], ID)
    records.add(9008, [["h", "cup"], *[["h", str(number)] for number in range(1000)]], ID)
    records.add(9008, [["h"], ["h", "jug"]], ID)
    assert (records.created, records.deleted) == ({"tea"}, {"cup"})
    assert str(records) == ("1 × 9007, 2 × 9008; they create 1 group (tea), delete 1 group (cup)")


@pytest.mark.parametrize("rest", [[], [["name", "x"]]])
def test_a_group_without_h_has_its_id_from_the_event(rest: list[list[str]]) -> None:
    """It counted as none, so that a file with the newest events first was not refused."""
    lines = [
        {"id": "cd" * 32, "kind": 9002, "tags": [["h", MADE], ["private"]]},
        {"id": ID, "kind": 9007, "tags": rest},
        {"id": "no id", "kind": 9007, "tags": rest},
        {"kind": 9007, "tags": rest},
    ]
    records = GroupRecords()
    records.add_lines(BytesIO(b"".join(orjson.dumps(line) + b"\n" for line in lines)))
    assert records.created == {MADE}
    with pytest.raises(UserError, match=f"1 group .{MADE}."):
        records.check_order("day.jsonl")


def test_an_id_that_the_relay_refuses_is_not_held() -> None:
    records = GroupRecords()
    for group in ("a" * 64, "b" * 65, "c" * 100_000, ""):
        line = orjson.dumps({"kind": 9007, "tags": [["h", group]]})
        assert records.add_lines(BytesIO(line + b"\n")) == 1
    assert records.created == {"a" * 64}
    assert group_records._MAX_ID == MAX_ID_CHARS
    assert str(records) == f"4 × 9007; they create 1 group ({'a' * 64})"


@pytest.mark.parametrize(
    ("groups", "said"), [(3, "3 groups (0, 1, 2)"), (4, "over 3 groups (0, 1, 2)")]
)
def test_so_many_groups_are_held_and_more_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, groups: int, said: str
) -> None:
    monkeypatch.setattr(group_records, "_MAX_KEPT", 3)
    records = GroupRecords()
    for kind in (9007, 9008):
        for group in [*range(groups), 0, 1]:
            records.add(kind, [["h", str(group)]], ID)
    assert max(len(records.created), len(records.deleted)) == 3
    events = groups + 2
    assert str(records) == (f"{events} × 9007, {events} × 9008; they create {said}, delete {said}")


def test_what_made_the_groups_of_a_file_is_kept_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ids that are not those of their events say nothing."""
    monkeypatch.setattr(group_records, "_MAX_KEPT", 4)
    made = [alice.sign(9007, [["h", f"g{n // 2}"]], f"{n}", 1_700_000_000) for n in range(5)]
    too_long = alice.sign(9007, [["h", "g" * 65]], "", 1_700_000_000)
    forged = orjson.loads(made[0].raw) | {"id": "0" * 64}
    lines = [orjson.dumps(forged), too_long.raw, *(event.raw for event in made)]
    records = GroupRecords()
    assert records.add_lines(BytesIO(b"".join(line + b"\n" for line in lines))) == 7
    assert records.made == {
        "g0": {made[0].id, made[1].id},
        "g1": {made[2].id, made[3].id},
    }


def test_ten_thousand_groups_are_held() -> None:
    records = GroupRecords()
    for number in range(10_500):
        records.add(9008, [["h", f"{number:05}"]], ID)
    assert len(records.deleted) == 10_000
    assert str(records).startswith("10500 × 9008; they delete over 10,000 groups (00000, 00001, ")
    assert str(records).endswith(", 00009, …)")


def test_a_group_must_not_come_after_what_makes_it_private() -> None:
    records = GroupRecords()
    for kind in (9007, 9002, 9008, 9007, 9002):  # it ended and was made again
        records.add(kind, [["h", "tea"]], ID)
    records.check_order("day.jsonl")
    for kind in (9002, 9007):
        records.add(kind, [["h", "den"]], ID)
    with pytest.raises(UserError, match=r"day\.jsonl has newer events .* 1 group \(den\) .*`tac`"):
        records.check_order("day.jsonl")
