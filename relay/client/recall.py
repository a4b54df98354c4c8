"""Recall: one question to all five memory systems, answered best first (G-26).

A relay with `match:any` (Rookery) ranks texts with any word of the question. From another relay
with NIP-50 texts with all words are requested, then those with each word; from one without it the
newest records are read and compared here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from relay.client.claims import ClaimReader
from relay.client.errors import AnswerTooLong, QueryClosed, Unanswered
from relay.client.information import can_search, limit_in, offers_memory
from relay.client.paging import MAX_ALL_BYTES
from relay.client.responses import MAX_ANSWER_BYTES
from relay.memory.junk import core_of
from relay.memory.snowclaw.keys import AGENT, COLLECTIVE, CONFIG
from relay.memory.systems import MEMORY_SYSTEMS
from relay.memory.time_words import periods
from relay.nostr import kinds
from relay.nostr.event import is_hex64, weight_of
from relay.nostr.keywords import RESULTS_PER_KEYWORD, keywords, merged
from relay.nostr.nip50 import search_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

    from relay.client.claims import Provenance
    from relay.client.responses import FilterLike
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search

SCAN_LIMIT: Final = 5_000
"""Events read per system on a relay without search."""
_COMPARED: Final = 4_000
"""Characters of a text whose words are compared: a member of a group may store 400,000."""
_LONG: Final = 8
"""Distinct words that a text must have to count as a near copy of an earlier one by its author."""
_ALIKE: Final = 0.8
"""Part of all words of the two texts that must be in both of them."""
_SPARE: Final = 2
"""Multiple of `limit` that is requested, because copies are dropped."""
_FIRST_SPARE: Final = 4
"""The first request asks for only this many more than `limit`: mostly there are no copies, and each
event costs a signature check."""
_RECORDS: Final = (kinds.APP_RECORD, kinds.APP_DATA)
_MAX_PROVENANCE_BYTES: Final = 64 << 20
"""What is read for the provenance of all hits, in memory: other agents may store any number of
large vouches and supersessions."""
_PROVENANCE_S: Final = 20.0


class System(NamedTuple):
    """The searchable records of one memory system."""

    name: str
    kinds: tuple[int, ...]
    prefixes: tuple[str, ...] = ()
    """Prefixes of `d`; none: all records of its kinds."""

    def has(self, event: Event) -> bool:
        return event.kind in self.kinds and (not self.prefixes or event.d.startswith(self.prefixes))


SYSTEMS: Final[Mapping[str, System]] = {
    "A": System(
        "aman",
        (
            kinds.DOC_MANIFEST,
            kinds.CHUNK_REF,
            kinds.PREFERENCE,
            kinds.SUMMARY,
            kinds.TOOL_HISTORY,
            kinds.SUBSCRIPTION_STATE,
        ),
    ),
    "D": System(
        "transcripts", (kinds.CONVERSATION_NOTE, kinds.SESSION_STATE, kinds.RUN_CONFIGURATION)
    ),
    "S": System("snowclaw", (kinds.APP_DATA,), (AGENT, COLLECTIVE)),
    "M": System("nmem", _RECORDS, ("nmem:",)),
    "X": System("anamnesis", _RECORDS, ("anamnesis:",)),
}
"""Letter for `--system` → system."""


def letter_of(system: str) -> str | None:
    """The key of SYSTEMS for a letter or a name, in any case; None: there is no such system."""
    for letter, known in SYSTEMS.items():
        if system.casefold() in (letter.casefold(), known.name):
            return letter
    return None


class Hit(NamedTuple):
    """One record found."""

    system: str
    """A letter of SYSTEMS."""
    event: Event
    text: str
    copies: int = 0
    """Hits left out because they say the same: by anybody, or nearly so by its author."""
    provenance: Provenance | None = None
    """Anamnesis, from `Client.recall`: who vouched for the claim, and what supersedes it. None also
    where that could not be read (`Recall.shortfall`)."""

    @property
    def hashed(self) -> str:
        """Anamnesis: hash of the claim, or of the claim it amends; empty: none."""
        is_claim = self.event.d.startswith(("anamnesis:memory:", "anamnesis:meta:"))
        hashed = self.event.tag("x") or "" if is_claim else ""
        return hashed if is_hex64(hashed) else ""


class Recall(NamedTuple):
    hits: list[Hit]
    """Best first."""
    shortfall: str
    """What the relay lacks, or did not give, for people; empty: nothing."""


class QueryClient(Protocol):
    """What a question needs of a `Client`."""

    @property
    def url(self) -> str: ...

    def now(self) -> int: ...

    async def known_information(self) -> Mapping[str, object]: ...

    async def query(self, *filters: FilterLike) -> list[Event]: ...

    def query_all(self, *filters: FilterLike) -> AsyncIterator[Event]: ...

    def query_pages(
        self,
        *filters: FilterLike,
        served: int = 0,
        most_bytes: int = MAX_ALL_BYTES,
        page_bytes: int = MAX_ANSWER_BYTES,
    ) -> AsyncIterator[list[Event]]: ...


async def recall(
    client: QueryClient,
    question: str,
    *,
    systems: Collection[str] = (),
    kind: int | None = None,
    group: str | None = None,
    limit: int = 20,
    as_of: int | None = None,
) -> Recall:
    """What answers the question, best first, each text once (`Hit.copies`). `systems`: letters;
    none: all.

    A question of quoted phrases only, or with a `-word`, is taken literally. `as_of`: Unix seconds
    that "last week" refers to; default: now. Raises QueryClosed, Unanswered.
    """
    wanted = {
        letter: filter_
        for letter in systems or SYSTEMS
        if (filter_ := _filter(SYSTEMS[letter], kind, group)) is not None
    }
    if not wanted:
        return Recall([], "")
    document = await client.known_information()
    most = _SPARE * limit
    if not can_search(document):
        found = [await _scan(client, filter_, question) for filter_ in wanted.values()]
        hits = _in_turn(wanted, found)
        shortfall = (
            f"{client.url} does not support search (NIP-50): the newest {SCAN_LIMIT:,} records"
            " of each system are scanned"
        )
        return Recall(_each_once(hits, limit), shortfall)
    if _is_question(question) and offers_memory(document, "search", "match"):
        search = query_of(question, client.now() if as_of is None else as_of)
        if kind is None and len(wanted) == len(SYSTEMS):
            # One ranking over all: mostly only memory records of their kinds have texts.
            every = {number for system in SYSTEMS.values() for number in system.kinds}
            told: list[Hit] = []
            for number in (limit + _FIRST_SPARE, most + _FIRST_SPARE):
                answer = await client.query(
                    {"kinds": sorted(every), **_h(group), "search": search, "limit": number}
                )
                hits = _hits(answer, wanted)
                told = _each_once(hits, limit)
                if len(told) == limit or len(answer) < number:
                    return Recall(told, "")
            if len(hits) == len(answer):
                return Recall(told, "")
            # Other records, perhaps of strangers, took places: queries of one system find none.
        found = await _ask(client, wanted, search, most)
    else:
        found = await _ask(client, wanted, question, most)
        if not any(found) and _is_plain(question):
            found = [await _by_any_word(client, each, question) for each in wanted.values()]
    return Recall(_each_once(_in_turn(wanted, found), limit), "")


async def with_provenance(client: QueryClient, found: Recall, reader: str) -> Recall:
    """The same, where claims of Anamnesis have `Hit.provenance`, if that can be read within bounds
    of size and time. `reader`: public key."""
    claims = {hit.hashed for hit in found.hits if hit.hashed}
    if not claims:
        return found
    left = _MAX_PROVENANCE_BYTES

    async def read(wanted: Filter) -> list[Event]:
        nonlocal left
        served = limit_in(await client.known_information(), "max_limit") or 0
        events: list[Event] = []
        async for page in client.query_pages(
            wanted, served=served, most_bytes=left, page_bytes=left
        ):
            events += page
        left -= sum(map(weight_of, events))
        return events

    try:
        async with asyncio.timeout(_PROVENANCE_S):
            of = await ClaimReader(read, client.known_information, reader).provenance_of(claims)
    except (AnswerTooLong, QueryClosed, Unanswered, TimeoutError) as error:
        why = str(error) or f"it takes over {_PROVENANCE_S:.0f} s"
        unread = f"who vouched for claims, and what supersedes them, could not be read: {why}"
        return found._replace(shortfall="; ".join(filter(None, (found.shortfall, unread))))
    hits = [hit._replace(provenance=of.get(hit.hashed)) for hit in found.hits]
    return found._replace(hits=hits)


def query_of(question: str, now: int) -> str:
    """The `search` of a filter for a relay with `match:any`."""
    near = [f"near:{first}-{last}" for first, last in periods(question, now)]
    # At the beginning, because long questions are cut; words with a colon would be extensions.
    return " ".join(["match:any", *near, question.replace(":", " ")])


def _filter(system: System, kind: int | None, group: str | None) -> dict[str, object] | None:
    """None: the system has no records of that kind."""
    if kind is not None and kind not in system.kinds:
        return None
    wanted: dict[str, object] = {"kinds": list(system.kinds) if kind is None else [kind]}
    if system.prefixes:
        wanted["#d"] = list(system.prefixes)
    return {**wanted, **_h(group)}


def _h(group: str | None) -> dict[str, object]:
    return {} if group is None else {"#h": [group]}


async def _ask(
    client: QueryClient, wanted: Mapping[str, Mapping[str, object]], search: str, limit: int
) -> list[list[Event]]:
    return await asyncio.gather(
        *(
            client.query({**filter_, "search": search, "limit": limit})
            for filter_ in wanted.values()
        )
    )


async def _scan(client: QueryClient, wanted: Mapping[str, object], question: str) -> list[Event]:
    prefixes = wanted.get("#d", [""])
    assert isinstance(prefixes, list)
    everything = {name: value for name, value in wanted.items() if name != "#d"}
    words = question.casefold().split()
    return [
        event
        async for event in client.query_all({**everything, "limit": SCAN_LIMIT})
        if event.d.startswith(tuple(prefixes))
        and (text := MEMORY_SYSTEMS.search_text(event))
        and all(word in text.casefold() for word in words)
    ]


def _is_plain(question: str) -> bool:
    """Plain words only: phrases and exclusions are not relaxed."""
    search = search_from(question)
    return search is not None and not search.excluded and not _phrases(search)


def _is_question(question: str) -> bool:
    """Whether the question has more than phrases, and excludes nothing: then no word is
    required."""
    search = search_from(question)
    return search is not None and not search.excluded and search.required != _phrases(search)


def _phrases(search: Search) -> tuple[str, ...]:
    return tuple(term for term in search.required if len(term.split()) > 1)


async def _by_any_word(
    client: QueryClient, wanted: Mapping[str, object], question: str
) -> list[Event]:
    """Fallback when no record contains all words, as for a question in a sentence."""
    answers = await asyncio.gather(
        *(
            client.query({**wanted, "search": word, "limit": RESULTS_PER_KEYWORD})
            for word in keywords(question)
        )
    )
    events = {event.id: event for answer in answers for event in answer}
    return [events[id_] for id_ in merged([[event.id for event in answer] for answer in answers])]


def _in_turn(letters: Iterable[str], answers: Sequence[Sequence[Event]]) -> list[Hit]:
    """Hits of several answers, merged by rank: the answers have no common scores."""
    ranked = [
        (rank, hit)
        for letter, answer in zip(letters, answers, strict=True)
        for rank, hit in enumerate(_hits(answer, [letter]))
    ]
    ranked.sort(key=lambda each: (each[0], -each[1].event.created_at, each[1].event.id))
    return [hit for _, hit in ranked]


def _hits(events: Iterable[Event], letters: Collection[str]) -> list[Hit]:
    return [
        Hit(letter, event, MEMORY_SYSTEMS.search_text(event) or "")
        for event in events
        if not event.d.startswith(CONFIG)
        for letter in letters
        if SYSTEMS[letter].has(event)
    ]


def _each_once(hits: Iterable[Hit], limit: int) -> list[Hit]:
    """The first `limit`; a hit that repeats an earlier one is counted in its `copies`. One of
    another author repeats the same text only: with other marks it may correct it. So does a text
    that is longer than what is compared, but for one with as many characters by its author."""
    told: list[Hit] = []
    places: dict[str | tuple[str, ...], int] = {}
    """Of texts; of authors with the words and symbols of a text."""
    long: list[tuple[int, frozenset[str]]] = []
    """Places of texts of some length, with their words."""
    for hit in hits:
        is_whole = len(hit.text) <= _COMPARED
        author, core = hit.event.pubkey, core_of(hit.text[:_COMPARED])
        if not is_whole:
            core = (str(len(hit.text)), *core)
        text, found = " ".join(hit.text.split()), frozenset(core)
        has_near = is_whole and len(found) >= _LONG
        place = places.get(text, places.get((author, *core)))
        if place is None and has_near:
            least = _ALIKE * len(found)
            for number, earlier in long:
                is_near = least <= len(earlier) and told[number].event.pubkey == author
                if is_near and _repeats(found, earlier):
                    place = number
                    break
        if place is not None:
            places[text] = place
            told[place] = told[place]._replace(copies=told[place].copies + 1)
        elif len(told) < limit:
            places[text] = places[(author, *core)] = len(told)
            if has_near:
                long.append((len(told), found))
            told.append(hit)
    return told


def _repeats(words: frozenset[str], earlier: frozenset[str]) -> bool:
    """Whether two texts of at least `_LONG` words differ in few words only, such as a number or a
    name."""
    if len(words) < _ALIKE * len(earlier) or len(earlier) < _ALIKE * len(words):
        return False  # they have too few in common
    common = len(words & earlier)
    return common >= _LONG and common >= _ALIKE * (len(words) + len(earlier) - common)
