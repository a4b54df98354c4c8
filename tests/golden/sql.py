"""The SQL composed for 67 queries × 8 viewers and for six sweeps, in tests/golden/sql.txt.

`python -m tests.golden.sql` prints how the file differs from what the code composes now, and writes
it. `‹a›` in a statement stands for the condition that says which rows the viewer may read by the
first filter; `member a=3`: for a member that is condition 3.
"""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relay.access.actors import Actors, Household
from relay.access.read_rules import Match, ReadRule, Target
from relay.access.visibility import ANONYMOUS, Viewer, everything_visible, visibility_for
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.retention import LastScan, MaxAge, MaxAmount, Scope, SweepRule
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.kinds import KindSet
from relay.nostr.nip50 import search_from
from relay.storage import PageQuery, Place
from relay.storage.hashes import Hashes
from relay.storage.sqlite.sql.conditions import NOW as QUERY_TIME
from relay.storage.sqlite.sql.conditions import BufferedRows, Query
from relay.storage.sqlite.sql.filters import Compiler
from relay.storage.sqlite.sql.sweep import SweepQueries
from relay.storage.sqlite.tag_buffer import TagBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.storage.sqlite.sql.conditions import Condition

GOLDEN: Final = Path(__file__).with_name("sql.txt")

TERMS: Final = FilterTerms(search=True)
HASHES: Final = Hashes(bytes(32))
NOW: Final = 1_700_000_000
ALICE, BOB, CAROL = "a1" * 32, "b0" * 32, "ca" * 32
OWNER, AGENT, HOME, BANNED = "0e" * 32, "a9" * 32, "40" * 32, "ba" * 32
MANY: Final = [f"{n:064x}" for n in range(20)]

GROUPS: Final = (
    Groups()
    .with_group(Group("open", members=OrderedMap({ALICE: ()})))
    .with_group(
        Group("closed", flags=frozenset({Flag.PRIVATE}), members=OrderedMap({ALICE: ("admin",)}))
    )
    .with_group(Group("hidden", flags=frozenset({Flag.HIDDEN}), members=OrderedMap({BOB: ()})))
)
ACTORS: Final = Actors(
    owners=frozenset({OWNER}),
    agents=frozenset({AGENT}),
    households=(Household("home", frozenset({HOME}), frozenset({AGENT})),),
    banned=frozenset({BANNED}),
)
VIEWERS: Final = {
    "anonymous": ANONYMOUS,
    "trusted": Viewer(trusted=True),
    "unknown": Viewer(frozenset({CAROL})),
    "member": Viewer(frozenset({BOB})),
    "admin": Viewer(frozenset({ALICE})),
    "two keys": Viewer(frozenset({ALICE, BOB})),
    "agent": Viewer(frozenset({AGENT})),
    "owner": Viewer(frozenset({OWNER})),
}


def _rule(match: Match, *readers: Who, **more: Any) -> ReadRule:
    return ReadRule("a rule", match, frozenset(readers), **more)


RULES: Final = (
    _rule(Match(h=True), Who.GROUP, Who.OWNER),
    _rule(Match(KindSet.of((39000, 39005)), h=True), Who.VISIBLE),
    _rule(Match(KindSet.of((9000, 9022)), h=True), Who.INSIDER, Who.ADMIN),
    _rule(Match(h=frozenset({"closed", "vault"})), Who.ADMIN),
    _rule(Match(ended=True), Who.NOBODY),
    _rule(
        Match(KindSet.of(4, 1059)),
        Who.AUTHOR,
        Who.RECIPIENT,
        Who.TRUSTED,
        only_by=frozenset({"#p", "authors", "ids"}),
    ),
    _rule(
        Match(KindSet.of(30078, 78), d_prefixes=("snow:", "aman:")),
        Who.AUTHOR,
        Who.OWNER,
        Who.AGENT,
        excepts=(Match(tags=(("visibility", frozenset({"public"})),)),),
        tag_readers=("subject",),
    ),
    _rule(Match(KindSet.of(30095), quiet=True), Who.OWNER, Who.KNOWN),
    _rule(Match(KindSet.of(30174), d=frozenset({"x", "y"}), tags=(("enc", True),)), Who.MEMBER),
    _rule(
        Match(KindSet.of(7101), authors=frozenset({AGENT})),
        Who.TARGET,
        Who.AUTHOR,
        target=Target(frozenset({7100}), "e", "task:"),
    ),
    _rule(Match(KindSet.of(7102)), Who.TARGET, target=Target(frozenset({7100}), "e")),
)

FILTERS: Final[dict[str, dict[str, Any]]] = {
    "nothing asked": {},
    "since": {"since": 5},
    "until": {"until": 9},
    "since and until": {"since": 5, "until": 9},
    "one kind": {"kinds": [1]},
    "kinds side by side": {"kinds": [1, 7, 9]},
    "kinds that rules name": {"kinds": [4, 1059]},
    "a kind of groups": {"kinds": [9]},
    "moderation": {"kinds": [9000, 9001]},
    "group metadata": {"kinds": [39000]},
    "states of groups": {"kinds": [39000, 39002], "#d": ["open", "closed", "hidden"]},
    "kinds over the bound": {"kinds": list(range(100, 140))},
    "kinds over both bounds": {"kinds": list(range(100, 240))},
    "one author": {"authors": [ALICE]},
    "authors side by side": {"authors": [ALICE, BOB, CAROL]},
    "authors over the bound": {"authors": MANY},
    "author and kind": {"authors": [ALICE], "kinds": [1], "until": 9},
    "profiles": {"authors": [ALICE, BOB], "kinds": [0, 10002]},
    "profiles over the bound": {"authors": MANY, "kinds": [0, 10002]},
    "author of a guarded kind": {"authors": [ALICE], "kinds": [1059]},
    "one id": {"ids": [ALICE]},
    "ids": {"ids": [ALICE, BOB]},
    "ids over the bound": {"ids": MANY},
    "ids, authors, kinds": {"ids": [ALICE], "authors": [BOB], "kinds": [1]},
    "one tag": {"#t": ["tea"]},
    "tag in the buffer": {"#t": ["recent"]},
    "values side by side": {"#t": ["tea", "milk"]},
    "values over the bound": {"#t": [str(n) for n in range(20)]},
    "tag and kind": {"#t": ["tea"], "kinds": [1]},
    "two tags": {"#t": ["tea"], "#e": [ALICE]},
    "tags under every letter": {
        f"#{letter}": [ALICE, BOB, CAROL, AGENT] for letter in ascii_lowercase
    },
    "a broad tag of authors": {"#h": ["open"], "authors": [ALICE]},
    "broad values of an author": {"#p": MANY, "authors": [ALICE], "kinds": [1], "since": 5},
    "a group": {"#h": ["open"]},
    "recipient": {"kinds": [1059], "#p": [BOB]},
    "a tag of several letters": {"#hk": ["h1"]},
    "d": {"kinds": [30078], "#d": ["snow:a"]},
    "prefix of d": {"kinds": [30078], "#d": ["snow:"]},
    "prefix of d and author": {"kinds": [30078, 78], "#d": ["snow:", "x"], "authors": [ALICE]},
    "quiet rows": {"kinds": [30095]},
    "a tag decides": {"kinds": [30174]},
    "another row decides": {"kinds": [7101]},
    "other rows of all kinds": {"#e": [ALICE]},
    "all at once": {
        "ids": [ALICE],
        "authors": [BOB],
        "kinds": [1, 7],
        "#t": ["tea"],
        "since": 5,
        "until": 9,
    },
}
"""Asked as pages."""


class Case(NamedTuple):
    name: str
    filters: list[Filter]
    compose: Callable[[Compiler, Visibility], Query]


def cases() -> Iterator[Case]:
    for name in FILTERS:
        yield _page(name)
    for name in ("one kind", "values side by side"):
        yield _page(name, after=Place(7, -5, 3))
    for names in (
        ["one author"],
        ["kinds side by side"],
        ["values side by side"],
        ["nothing asked"],
        ["one kind", "one tag"],
    ):
        yield _count(" + ".join(names), [FILTERS[name] for name in names])
    for name, limit in (
        ("nothing asked", None),
        ("nothing asked", 10),
        ("two tags", None),
        ("broad values of an author", None),
    ):
        yield _items(name, limit)
    yield _authors("a group")
    for words in ("tea", '"green tea" kettle -milk'):
        yield _search(words)
        yield _count(f"search {words}", [{"search": words, "kinds": [1, 9]}])
    yield _rows("kinds side by side")


def _page(name: str, after: Place | None = None) -> Case:
    filter_ = filter_from(FILTERS[name], TERMS)

    def compose(by: Compiler, seen: Visibility) -> Query:
        return by.page(PageQuery(filter_, seen, 1000, 1000, NOW, 50, after), "e.raw")

    return Case(f"{'page' if after is None else 'next page'}: {name}", [filter_], compose)


def long_cases() -> Iterator[Case]:
    for name in ("one kind", "kinds side by side", "moderation"):
        yield _long_page(name)
    yield _long_page("one kind", after=Place(7, -5, 3), since=5)
    filter_ = filter_from(FILTERS["kinds side by side"], TERMS)
    yield Case(
        "long count: kinds side by side",
        [filter_],
        lambda by, seen: by.count([filter_], seen, now=NOW, is_long=True),
    )
    yield _items("kinds side by side", None)
    for name in ("one kind", "one tag", "nothing asked", "two tags"):
        for number in (1, 40, None):
            yield _page_of_partitions(name, number)
    yield _long_page("prefix of d and author")
    yield _long_page("d", authors=[ALICE])
    filters = [filter_from(FILTERS[name], TERMS) for name in ("prefix of d and author", "one tag")]
    yield Case(
        "long count: prefix of d and author + one tag",
        filters,
        lambda by, seen: by.count(filters, seen, now=NOW, is_long=True),
    )


def _long_page(name: str, after: Place | None = None, **more: Any) -> Case:
    filter_ = filter_from({**FILTERS[name], **more}, TERMS)

    def compose(by: Compiler, seen: Visibility) -> Query:
        query = PageQuery(filter_, seen, 1000, 1000, NOW, 50, after)
        return by.page(query, "e.raw", is_long=True)

    return Case(f"long {'page' if after is None else 'next page'}: {name}", [filter_], compose)


def _page_of_partitions(name: str, number: int | None) -> Case:
    """Of so many, besides 0. None: it finds them itself."""
    filter_ = filter_from(FILTERS[name], TERMS)
    those = None if number is None else frozenset(range(1, number + 1))

    def compose(by: Any, seen: Visibility) -> Query:
        query = PageQuery(filter_, seen, 1000, 1000, NOW, 50)
        found: Query = by.compiler.page(query, "e.raw", those)
        return found

    return Case(f"page of {number or 'any'} partitions: {name}", [filter_], compose)


def _count(name: str, asked: Sequence[dict[str, Any]]) -> Case:
    filters = [filter_from(one, TERMS) for one in asked]
    return Case(f"count: {name}", filters, lambda by, seen: by.count(filters, seen, now=NOW))


def _items(name: str, limit: int | None) -> Case:
    filter_ = filter_from(FILTERS[name], TERMS)

    def compose(by: Compiler, seen: Visibility) -> Query:
        return by.items(filter_, seen, limit=limit, upto=1000, now=NOW, at_most=100)

    return Case(f"items: {name}, limit {limit}", [filter_], compose)


def _authors(name: str) -> Case:
    filter_ = filter_from(FILTERS[name], TERMS)
    return Case(
        f"authors: {name}",
        [filter_],
        lambda by, seen: by.authors(filter_, seen, now=NOW, at_most=100),
    )


def _search(words: str) -> Case:
    filter_, search = filter_from({"search": words, "kinds": [1, 9]}, TERMS), search_from(words)
    assert search is not None

    def compose(by: Compiler, seen: Visibility) -> Query:
        return by.search(search, filter_, seen, limit=50, upto=1000, now=NOW)

    return Case(f"search: {words}", [filter_], compose)


def _rows(name: str) -> Case:
    filter_ = filter_from(FILTERS[name], TERMS)
    return Case(
        f"rows: {name}", [filter_], lambda by, seen: by.rows([3, 1, 2], filter_, seen, now=NOW)
    )


def sweeps() -> Iterator[tuple[str, Query]]:
    queries = SweepQueries(_compiler(), TERMS.index_tags)
    tools = Match(KindSet.of(30095), h=False)
    notes = Match(KindSet.of(30078), d_prefixes=("snow:", "aman:"))
    seen, spared = LastScan(900, NOW - 60), [Match(authors=frozenset({OWNER}))]
    for name, match, limit, since in (
        ("older than 30 days", tools, MaxAge(30), None),
        ("older than 30 days, again", tools, MaxAge(30), seen),
        ("over 10 events per author", tools, MaxAmount(Scope.AUTHOR, events=10), None),
        ("over 10 events per author, again", tools, MaxAmount(Scope.AUTHOR, events=10), seen),
        ("over 1 MB per history key", tools, MaxAmount(Scope.HK, bytes=1 << 20), None),
        ("over 9 events per prefix", notes, MaxAmount(Scope.D_PREFIX, events=9), None),
    ):
        rule = SweepRule("a rule", "here:1", match, limit)
        yield name, queries.due_rows(rule, spared, now=NOW, last_scan=since, after=None, limit=500)


class _Composing:
    """The compiler, for viewers in no guarded group."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler

    def page(self, query: PageQuery, columns: str, *, is_long: bool = False) -> Query:
        return self.compiler.page(query, columns, frozenset(), is_long=is_long)

    def count(self, filters: Sequence[Filter], visibility: Visibility, **more: Any) -> Query:
        return self.compiler.count(filters, visibility, frozenset(), **more)

    def authors(self, filter_: Filter, visibility: Visibility, **more: Any) -> Query:
        return self.compiler.authors(filter_, visibility, frozenset(), **more)

    def items(self, filter_: Filter, visibility: Visibility, **more: Any) -> Query:
        return self.compiler.items(filter_, visibility, frozenset(), **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiler, name)


def _compiler() -> Compiler:
    recent = (HASHES.tag("t", "recent"), 1, 1, 1, 7, None)
    buffer = TagBuffer()
    buffer.add([recent])

    def pairs_of(hashes: Sequence[int], most: int) -> Sequence[tuple[int, int]]:
        return [(hash_, kind) for hash_ in hashes for kind in (1, 7)][:most]

    return Compiler(HASHES, TERMS.index_tags, buffer, pairs_of, lambda: "[]")


def composed() -> str:
    """What the file should hold."""
    return text_of(str(__doc__), _Composing(_compiler()), sweeps(), long_cases())


def text_of(
    title: str,
    compiler: Any,
    sweeps: Iterable[tuple[str, Query]] = (),
    more: Iterable[Case] = (),
) -> str:
    """All cases. `compiler`: a Compiler, or what composes the SQL of another store as one; `more`:
    cases of this store only."""
    viewers = {
        name: visibility_for(viewer, RULES, ACTORS, GROUPS) for name, viewer in VIEWERS.items()
    }
    everything = everything_visible(ACTORS, GROUPS)
    numbers: dict[Condition, int] = {}
    out = [*[f"# {line}".rstrip() for line in title.strip().splitlines()], ""]
    for case in (*cases(), *more):
        statements: dict[str, list[str]] = {}
        for name, visibility in viewers.items():
            text, names = _apart(case.compose(compiler, visibility)).sql, [name]
            for letter, filter_ in zip("ab", case.filters, strict=False):
                condition = compiler.visible(visibility, filter_)
                if len(condition.sql) > _SHORT and condition.sql in text:
                    text = text.replace(condition.sql, f"‹{letter}›")
                    names.append(f"{letter}={numbers.setdefault(condition, len(numbers) + 1)}")
            statements.setdefault(text, []).append(" ".join(names))
        out.append(f"## {case.name}")
        for text, readers in statements.items():
            out += [*_lines(text), f"-- {', '.join(readers)}"]
        values = _apart(case.compose(compiler, everything)).values
        out += [f"-- values, without those of conditions: {_shown(values)}", ""]
    for condition, number in numbers.items():
        out += [f"## condition {number}", *_lines(condition.sql)]
        out += [f"-- values: {_shown(condition.values)}", ""]
    for name, query in sweeps:
        sql, given = _apart(query)
        out += [f"## sweep: {name}", *_lines(sql), f"-- values: {_shown(given)}", ""]
    return "\n".join(out)


def _apart(query: Any) -> Any:
    """With a value for each place, as before `binding_once`."""
    places = _PLACE.findall(query.sql)
    if not any(places):  # none has two, or it is of another store
        return query
    values: list[Any] = []
    bare = iter(query.values)
    for number in places:
        values.append(query.values[int(number) - 1] if number else next(bare))
    return Query(_PLACE.sub("?", query.sql), values)


_PLACE: Final = re.compile(r"\?(\d*)")


_SHORT: Final = 12
"""Conditions up to this length are shown where they stand."""
_CLAUSE: Final = re.compile(
    r" (?=(?:FROM|WHERE|UNION|ORDER BY|CROSS JOIN|AND \(|OR \()\b|AND EXISTS|OR EXISTS)"
)


def _lines(sql: str) -> list[str]:
    return [
        line
        for clause in _CLAUSE.sub("\n", sql).splitlines()
        for line in textwrap.wrap(clause, 110, break_long_words=False, break_on_hyphens=False)
    ]


def _shown(values: Sequence[object]) -> str:
    return ", ".join([_value(value) for value in values])


def _value(value: object) -> str:
    if isinstance(value, BufferedRows):
        return f"buffered{value.hashes}"
    if value is QUERY_TIME:
        return "now"
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


_MAX_VALUE: Final = 24


def update(golden: Path, now: str) -> None:
    """Write the file and print how it has changed."""
    before = golden.read_text("utf-8") if golden.exists() else ""
    golden.write_text(now, "utf-8")
    sys.stdout.writelines(
        difflib.unified_diff(
            before.splitlines(keepends=True), now.splitlines(keepends=True), "before", "now"
        )
    )


if __name__ == "__main__":
    update(GOLDEN, composed())
