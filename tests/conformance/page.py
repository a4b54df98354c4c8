"""The statements with their proofs, for whoever wants to know: a page of the protocol's, tables of
memory's inside a page that people write.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from tests.conformance.statements import LeftOut, Level, Statement, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from tests.conformance.proofs import Proof

SHOWN = 3
"""Proofs named in one row."""
SHORT = 160
"""Characters of a statement in its row, about."""

INTRODUCTION = """\
# Conformance

<!-- Made by `python -m tests.conformance` from the tests. Changes by hand are lost. -->

What the Nostr protocol asks of a relay, line by line, and the test that holds Rookery to it. The
lines are numbered and written out in [statements.md](../tests/conformance/statements.md); a test
names those that it proves, and `make check` fails when a duty has no proof or this page is stale.

MUST, SHOULD and MAY are the words of the NIP. POLICY is what no NIP says but a correct relay needs:
it binds like MUST. *Practice* is what other relays do, and no duty. What no test proves says why.

The proofs under `conversations/` are plain scripts of what is said to a relay and what it must
answer; `python -m tests.conversations wss://…` plays them to any relay.
"""


BEGIN = "<!-- Made by `python -m tests.conformance` from here to the end of the page. -->"
"""What stands before it in docs/memory.md is written by hand."""


@dataclass(frozen=True, slots=True)
class UsageCounter:
    """The statements, each with its proofs or the reason why it has none."""

    statements: Mapping[str, Statement]
    proofs: Mapping[str, Set[Proof]]
    left_out: LeftOut

    def is_proven(self, statement: Statement) -> bool:
        return statement.id in self.proofs

    def is_open(self, statement: Statement) -> bool:
        """Neither proven nor left out with a reason, though it asks for something."""
        return (
            statement.level is not Level.PRACTICE
            and not self.is_proven(statement)
            and self.left_out.reason(statement) is None
        )

    def open(self) -> list[Statement]:
        return [statement for statement in self.statements.values() if self.is_open(statement)]

    def of(self, statements: Mapping[str, Statement]) -> UsageCounter:
        """The part about these."""
        return replace(self, statements=statements)

    def check_nothing_is_both(self) -> None:
        """Raises Unknown."""
        both = [id_ for id_ in self.proofs if self.left_out.without_proof(id_) is not None]
        if both:
            raise Unknown(f"both proven and left out: {', '.join(sorted(both))}")


def page(ledger: UsageCounter) -> str:
    """Markdown. The same ledger gives the same bytes."""
    return "\n".join([INTRODUCTION, *_tables(ledger, "##")])


def page_with_tables(written: str, ledger: UsageCounter) -> str:
    """What people wrote, up to BEGIN, and behind it the tables. Raises Unknown without a BEGIN."""
    by_hand, begin, _ = written.partition(BEGIN)
    if not begin:
        raise Unknown(f"the page has no line {BEGIN}")
    return "\n".join([by_hand + begin, "", *_tables(ledger, "###")])


def _tables(ledger: UsageCounter, heading: str) -> list[str]:
    """`heading`: the signs before a section's, `##`."""
    sections = [
        (section, list(members))
        for section, members in groupby(ledger.statements.values(), lambda each: each.section)
    ]
    parts = [_section(ledger, f"{heading} {section}", members) for section, members in sections]
    return [_summary(ledger, sections), *parts]


def _summary(ledger: UsageCounter, sections: list[tuple[str, list[Statement]]]) -> str:
    rows = ["| section | statements | proven | left out | open |", "|---|--:|--:|--:|--:|"]
    total = [0, 0, 0, 0]
    for section, members in sections:
        proven = sum(map(ledger.is_proven, members))
        still_open = sum(map(ledger.is_open, members))
        counts = [len(members), proven, len(members) - proven - still_open, still_open]
        total = [one + another for one, another in zip(total, counts, strict=True)]
        rows.append(_row(f"[{section}](#{_anchor(section)})", *map(str, counts)))
    rows.append(_row("**all**", *(f"**{count}**" for count in total)))
    return "\n".join([*rows, ""])


def _section(ledger: UsageCounter, heading: str, members: list[Statement]) -> str:
    rows = [heading, "", "| id | level | statement | proven by |", "|---|---|---|---|"]
    for statement in members:
        what = _proofs(ledger.proofs.get(statement.id, frozenset())) or _why_not(ledger, statement)
        level = statement.level.value
        rows.append(_row(statement.id, level, _shortened(statement.text), what))
    return "\n".join([*rows, ""])


def _proofs(proofs: Iterable[Proof]) -> str:
    ordered = sorted(proofs, key=lambda proof: (bool(proof.name), proof))
    links = [f"[{proof}](../tests/{proof.path})" for proof in ordered[:SHOWN]]
    more = len(ordered) - SHOWN
    return "<br>".join([*links, f"and {more} more"] if more > 0 else links)


def _why_not(ledger: UsageCounter, statement: Statement) -> str:
    reason = ledger.left_out.reason(statement)
    if reason is not None:
        return f"left out: {_escaped(reason)}"
    return "**open**" if ledger.is_open(statement) else "no duty"


def _shortened(text: str) -> str:
    """Whole words, and no `code` cut in two."""
    if len(text) > SHORT:
        words = text[:SHORT].split(" ")[:-1]
        while words and " ".join(words).count("`") % 2:
            words.pop()
        text = " ".join(words).rstrip(" ,;:") + " …"
    return _escaped(text)


def _escaped(text: str) -> str:
    # Inside `code` an angle bracket is itself; only the bar would end the cell there.
    parts = text.replace("|", "\\|").split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts)
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _anchor(heading: str) -> str:
    """As the repository hosts make it of a heading."""
    kept = (char for char in heading.lower() if char.isalnum() or char in " -_")
    return "".join(kept).replace(" ", "-")
