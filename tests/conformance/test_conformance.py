"""tests/conformance: which statements are read, what counts as a proof, what the pages say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.__main__ import lost_proofs
from tests.conformance.page import MEMORY_INTRODUCTION, Coverage, listing, page
from tests.conformance.proofs import Collected, Proof, check_marks
from tests.conformance.statements import (
    MEMORY,
    PROTOCOL,
    LeftOut,
    Level,
    Unknown,
    all_left_out,
    all_statements,
    ids_named_in,
    of_memory,
    of_the_protocol,
    statements_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = """
## 01. Basic protocol
Between the lines anything may stand.
- **N01-01** MUST: an event is one `JSON | object`.
- **N01-02** MAY: more <of it>.

## Z. Decided
- **Z-01** POLICY: so it is.
- **Z-02** Practice: so do others.
"""
NOWHERE = LeftOut({}, {}, {})


def coverage(left_out: LeftOut = NOWHERE, **proofs: int) -> Coverage:
    """The statements of TEXT; keyword `N01_01=2`: two tests prove N01-01."""
    return Coverage(
        statements_in(TEXT),
        {
            id_.replace("_", "-"): {Proof(f"unit/test_{n}.py", "test_it") for n in range(many)}
            for id_, many in proofs.items()
        },
        left_out,
    )


# statements --------------------------------------------------------------------------------------


def test_a_statement_has_its_id_its_section_its_level_and_its_text() -> None:
    found = statements_in(TEXT)
    assert list(found) == ["N01-01", "N01-02", "Z-01", "Z-02"]
    first = found["N01-01"]
    assert (first.section, first.level) == ("01. Basic protocol", Level.MUST)
    assert first.text == "an event is one `JSON | object`."
    assert [each.level.binds for each in found.values()] == [True, False, True, False]


def test_an_id_stands_once() -> None:
    with pytest.raises(Unknown, match="Z-01 stands twice"):
        statements_in(TEXT + "- **Z-01** MUST: again.")


def test_every_line_of_the_list_is_read() -> None:
    lines = [path.read_text(encoding="utf-8").count("\n- **") for path in (PROTOCOL, MEMORY)]
    assert [len(of_the_protocol()), len(of_memory())] == lines
    assert {"N01-01", "N29-172", "N86-28", "NK-08", "Z-19"} <= set(of_the_protocol())
    assert {"G-33", "A-28", "D-35", "S-40", "M-31", "X-22"} <= set(of_memory())
    assert len(all_statements()) == sum(lines)


def test_what_is_left_out_exists_and_is_no_duty() -> None:
    left_out, known = all_left_out(), all_statements()
    assert left_out.reason(known["N29-161"]) is not None
    assert left_out.reason(known["N01-01"]) is None


def test_what_comes_later_is_said_of_a_statement_or_of_a_family() -> None:
    left_out, known = LeftOut({}, {}, {"X": "not yet", "G-13": "later"}), all_statements()
    given = [left_out.reason(known[id_]) for id_ in ("X-01", "G-13", "G-14")]
    assert given == ["not yet", "later", None]


def test_nothing_waits() -> None:
    assert all_left_out().later == {}


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('[no_duty]\n[not_built]\n"N01-01" = "no"\n[later]', "a duty cannot be left out: N01-01"),
        ('[no_duty]\n[not_built]\n"A-01" = "no"\n[later]', "a duty cannot be left out: A-01"),
        ('[no_duty]\n"N99-01" = "no"\n[not_built]\n[later]', "no such statement: N99-01"),
        ('[no_duty]\n[not_built]\n[later]\n"Q" = "no"', "no such statement: Q"),
    ],
)
def test_a_table_of_what_is_left_out_may_be_wrong(
    table: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "left_out.toml"
    wrong.write_text(table, encoding="utf-8")
    monkeypatch.setattr("tests.conformance.statements.LEFT_OUT", wrong)
    with pytest.raises(Unknown, match=fault):
        all_left_out()


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        ("# A title.   N01-05, docs/interop.md", ["N01-05"]),
        ("N01-55, 65, 68, docs/interop.md", ["N01-55", "N01-65", "N01-68"]),
        ("N62-01, 03…05, 08, Z-13", ["N62-01", "N62-03", "N62-04", "N62-05", "N62-08", "Z-13"]),
        ("N29-112…114, NK-01...03", ["N29-112", "N29-113", "N29-114", "NK-01", "NK-02", "NK-03"]),
        ("N01-14…20", ["N01-14", "N01-20"]),  # none of the ids between exists
        ("S-21…23, G-02, memory §2.7, RG, NIP-01, 20", ["S-21", "S-22", "S-23", "G-02"]),
    ],
)
def test_the_ids_that_a_line_names(line: str, ids: list[str]) -> None:
    assert list(ids_named_in(line)) == ids


# proofs ------------------------------------------------------------------------------------------


class Marked(pytest.Item):
    """A test that nobody runs."""

    def runtest(self) -> None:
        raise NotImplementedError


@pytest.fixture
def marked(request: pytest.FixtureRequest) -> Callable[..., pytest.Item]:
    def item(*marks: pytest.MarkDecorator) -> pytest.Item:
        made: pytest.Item = Marked.from_parent(request.node.parent, name="test_tea")
        for mark in marks:
            made.add_marker(mark)
        return made

    return item


def test_a_mark_is_a_proof_by_the_test_or_by_the_file_that_it_plays(
    marked: Callable[..., pytest.Item],
) -> None:
    proves = pytest.mark.proves
    collected = Collected()
    script = marked(proves("N01-02", by="conversations/a.nostr"))
    collected.pytest_collection_modifyitems([marked(proves("N01-01", "N01-02")), script])
    by_test = Proof("conformance/test_conformance.py", "test_tea")
    assert collected.proofs == {
        "N01-01": {by_test},
        "N01-02": {by_test, Proof("conversations/a.nostr", "")},
    }


@pytest.mark.parametrize("mark", [pytest.mark.xfail(reason="not built"), pytest.mark.skip])
def test_what_does_not_pass_proves_nothing(
    marked: Callable[..., pytest.Item], mark: pytest.MarkDecorator
) -> None:
    collected = Collected()
    collected.pytest_collection_modifyitems([marked(pytest.mark.proves("N01-01"), mark)])
    assert collected.proofs == {}


def test_a_mark_without_a_statement_ends_the_collection(
    marked: Callable[..., pytest.Item],
) -> None:
    with pytest.raises(pytest.UsageError, match="test_tea: no such statement: N99-01"):
        check_marks([marked(pytest.mark.proves("N01-01")), marked(pytest.mark.proves("N99-01"))])


# the page ----------------------------------------------------------------------------------------


def test_open_is_what_asks_for_something_and_has_neither_proof_nor_reason() -> None:
    assert [each.id for each in coverage().open()] == ["N01-01", "N01-02", "Z-01"]
    left_out = LeftOut({"Z-01": "of clients"}, {"N01-02": "no use"}, {})
    assert [each.id for each in coverage(left_out, N01_01=1).open()] == []


def test_nothing_is_both_proven_and_left_out() -> None:
    with pytest.raises(Unknown, match="both proven and left out: N01-02"):
        coverage(LeftOut({}, {"N01-02": "no use"}, {}), N01_02=1).check_nothing_is_both()


def test_what_comes_later_may_be_proven_all_the_same() -> None:
    later = coverage(LeftOut({}, {}, {"N01": "later", "Z": "later"}), N01_02=1)
    later.check_nothing_is_both()
    assert later.open() == []
    rows = page("", later).splitlines()
    assert "| [01. Basic protocol](#01-basic-protocol) | 2 | 1 | 1 | 0 |" in rows
    assert "| Z-01 | POLICY | so it is. | left out: later |" in rows


def test_a_page_begins_with_its_introduction() -> None:
    made = page(MEMORY_INTRODUCTION, coverage(N01_01=1))
    assert made.startswith(f"{MEMORY_INTRODUCTION}\n| section |")
    assert "\n## Z. Decided\n" in made


def test_a_deleted_proof_is_reported_though_another_one_is_left() -> None:
    before, after = listing(coverage(N01_01=2)), listing(coverage(N01_01=1, N01_02=1))
    assert before.splitlines() == [
        "N01-01 unit/test_0.py::test_it",
        "N01-01 unit/test_1.py::test_it",
    ]
    assert after != before
    assert lost_proofs(before, after) == ["N01-01 unit/test_1.py::test_it"]
    assert lost_proofs(before, before) == []


def test_the_page_counts_and_names_what_proves_each_statement() -> None:
    made = page("", coverage(LeftOut({}, {"N01-02": "no use"}, {}), N01_01=5)).splitlines()
    assert "| [01. Basic protocol](#01-basic-protocol) | 2 | 1 | 1 | 0 |" in made
    assert "| **all** | **4** | **1** | **2** | **1** |" in made
    proofs = "<br>".join(
        f"[unit/test_{n}.py::test_it](../tests/unit/test_{n}.py)" for n in range(3)
    )
    assert (
        f"| N01-01 | MUST | an event is one `JSON \\| object`. | {proofs}<br>and 2 more |" in made
    )
    assert "| N01-02 | MAY | more &lt;of it>. | left out: no use |" in made
    assert "| Z-01 | POLICY | so it is. | **open** |" in made
    assert "| Z-02 | Practice | so do others. | no duty |" in made


def test_a_long_statement_is_cut_between_words_and_outside_of_code() -> None:
    text = f"## A\n- **Z-01** MUST: {'word ' * 28}`code with many a blank in it that is long`."
    made = page("", Coverage(statements_in(text), {}, NOWHERE))
    assert f"| Z-01 | MUST | {'word ' * 28}… |" in made
