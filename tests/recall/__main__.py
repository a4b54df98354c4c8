"""`python -m tests.recall` asks a relay the questions of a data set, and prints how well it did.

Without arguments: a small synthetic set. `--data FILE`: LoCoMo's `locomo10.json`, or another file
of its form with `--sha256`. Each conversation gets a fresh relay. All numbers but times are the
same in each run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests import cast
from tests.harness.relay_program import Rookery
from tests.recall import beam, scale, synthetic
from tests.recall.dataset import CATEGORIES, LOCOMO, DatasetFault, conversations_in, read
from tests.recall.measures import Quality, chance, mean, quality, sessions_of
from tests.recall.retrieval import AGENT, MemoryRefused, methods_into, session_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.recall.dataset import Conversation

ANY_ORDER = "any order"
"""What chance alone would reach."""
ALL = "all"
PARTS = {"all": slice(None), "tuned": slice(0, None, 2), "held-out": slice(1, None, 2)}


class Answer(NamedTuple):
    """How one question went by one method."""

    method: str
    category: int
    quality: Quality
    seconds: float | None
    tokens: int = 0
    """Of the first ten hits, at four characters each."""
    rate: float = 0.0
    """Turns a second that became findable."""


class Row(NamedTuple):
    """All questions of a category, by one method."""

    method: str
    category: str
    questions: int
    quality: Quality
    ms: tuple[float, float] | None
    """Of a question: the median, and what 99 of 100 stay below."""
    tokens: int
    """Given to a model for an answer: the first ten hits, on average."""
    rate: float
    """Turns a second that became findable, on average; 0: nothing is to be done for it."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.recall",
        description="How well a relay finds the sessions that answer a question.",
    )
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="LoCoMo's locomo10.json, or BEAM's chats/100K"
    )
    parser.add_argument(
        "--sha256", metavar="HEX", default=LOCOMO, help="of the file, when it is another one"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="methods whose name it finds")
    parser.add_argument(
        "--meaning", action="store_true", help="with [search] meaning: needs the extra semantic"
    )
    parser.add_argument(
        "--part",
        choices=PARTS,
        default="all",
        help="tuned: the 1st, 3rd, … conversation, on which the ranking was tuned; held-out: the"
        " others",
    )
    parser.add_argument(
        "--without",
        type=int,
        nargs="*",
        default=(),
        metavar="CATEGORY",
        help="leave these out: with 5, LoCoMo's adversarial questions",
    )
    parser.add_argument(
        "--memories",
        type=int,
        default=0,
        metavar="N",
        help="also: how long a question takes among N texts, and what the index costs ingest",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    return parser.parse_args(words)


async def ask_all(
    conversations: Sequence[Conversation],
    only: re.Pattern[str],
    asked: Callable[[str], None],
    *,
    by_meaning: bool = False,
) -> list[Answer]:
    """By the methods that `only` finds in their names. Raises MemoryRefused."""
    answers: list[Answer] = []
    for conversation in conversations:
        with tempfile.TemporaryDirectory(prefix="rookery-recall-") as name:
            folder = Path(name)
            async with Rookery(folder / "relay") as rookery:
                await rookery.init("--owner", cast.owner.npub, "--agent", AGENT.npub)
                if by_meaning:
                    rookery.set_up("search", "meaning = true")
                await rookery.start()
                vectors = rookery.folder / "search.db" if by_meaning else None
                async with methods_into(rookery.url, folder, conversation, vectors) as methods:
                    asking = [method for method in methods if only.search(method.name)]
                    there = sum(bool(session.turns) for session in conversation.sessions)
                    for question in conversation.questions:
                        sought = question.evidence
                        if not sought:
                            continue
                        for method in asking:
                            began = time.perf_counter()
                            hits = await method.ask(question.text)
                            seconds = time.perf_counter() - began
                            tokens = sum(len(hit.text) for hit in hits[:10]) // 4
                            reached = quality(
                                sessions_of(session_in(hit.session) for hit in hits), sought
                            )
                            about = method.name, question.category
                            answers.append(Answer(*about, reached, seconds, tokens, method.rate))
                        reached = chance(there, len(sought))
                        answers.append(Answer(ANY_ORDER, question.category, reached, None))
                        asked(conversation.name)
    return answers


async def at_scale(
    conversations: Sequence[Conversation], memories: int, *, by_meaning: bool
) -> dict[str, dict[str, float]]:
    """Raises MemoryRefused."""
    if not memories:
        return {}
    found = {}
    for meaning in (False, True)[: 1 + by_meaning]:
        times = await scale.questions_took(conversations, memories, by_meaning=meaning)
        how = "with meaning" if meaning else "words only"
        found[f"recall among {memories:,} texts, {how}"] = times._asdict()
    rates = await scale.writing_took(conversations)
    share = 100 * rates.indexed / rates.plain
    found["ingest, notes a second"] = {**rates._asdict(), "percent": share}
    return found


def rows_of(answers: Sequence[Answer]) -> list[Row]:
    """By method, in their order, and in each by category; all of them first."""
    grouped: defaultdict[str, defaultdict[int, list[Answer]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for answer in answers:
        grouped[answer.method][answer.category].append(answer)
    rows = []
    for method, by_category in grouped.items():
        everything = [answer for some in by_category.values() for answer in some]
        rows.append(_row(method, ALL, everything))
        for category, some in sorted(by_category.items()):
            rows.append(_row(method, CATEGORIES.get(category, str(category)), some))
    return rows


def _row(method: str, category: str, answers: Sequence[Answer]) -> Row:
    took = sorted(1000 * answer.seconds for answer in answers if answer.seconds is not None)
    ms = (took[len(took) // 2], took[len(took) * 99 // 100]) if took else None
    tokens = sum(answer.tokens for answer in answers) // len(answers)
    rate = sum(answer.rate for answer in answers) / len(answers)
    reached = mean(answer.quality for answer in answers)
    return Row(method, category, len(answers), reached, ms, tokens, rate)


def table(rows: Sequence[Row], title: str) -> Table:
    made = Table(title=title, title_justify="left")
    made.add_column("method", no_wrap=True)
    made.add_column("questions", no_wrap=True)
    for name in ("number", "R@1", "R@5", "R@10", "MRR", "p50 ms", "p99", "tokens", "turns/s"):
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row.category == ALL and made.row_count:
            made.add_section()
        reached = row.quality
        made.add_row(
            row.method if row.category == ALL else "",
            row.category,
            f"{row.questions:,}",
            f"{reached.recall_1:.3f}",
            f"{reached.recall_5:.3f}",
            f"{reached.recall_10:.3f}",
            f"{reached.reciprocal:.3f}",
            "" if row.ms is None else f"{row.ms[0]:.1f}",
            "" if row.ms is None else f"{row.ms[1]:.1f}",
            f"{row.tokens:,}" if row.tokens else "",
            f"{row.rate:,.0f}" if row.rate and row.category == ALL else "",
            style="bold" if row.category == ALL else None,
        )
    return made


def report(rows: Sequence[Row], name: str, unjudged: int) -> dict[str, object]:
    return {
        "data": name,
        "unjudged": unjudged,
        "rows": [
            {
                "method": row.method,
                "questions": row.category,
                "number": row.questions,
                "r@1": round(row.quality.recall_1, 4),
                "r@5": round(row.quality.recall_5, 4),
                "r@10": round(row.quality.recall_10, 4),
                "mrr": round(row.quality.reciprocal, 4),
                "p50_ms": None if row.ms is None else round(row.ms[0], 2),
                "p99_ms": None if row.ms is None else round(row.ms[1], 2),
                "tokens": row.tokens,
                "turns_per_s": round(row.rate, 1),
            }
            for row in rows
        ],
    }


def main() -> int:
    options = arguments()
    try:
        if options.data is None:
            conversations = conversations_in(synthetic.samples())
        elif options.data.is_dir():
            conversations = beam.read(options.data)
        else:
            conversations = read(options.data, options.sha256)
    except DatasetFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    asked = [
        replace(
            talk, questions=tuple(q for q in talk.questions if q.category not in options.without)
        )
        for talk in conversations[PARTS[options.part]]
    ]
    name = f"synthetic, seed {synthetic.SEED}" if options.data is None else options.data.name
    judged = [bool(each.evidence) for talk in asked for each in talk.questions]
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with shown:
        task = shown.add_task("", total=sum(judged))
        try:
            answers = asyncio.run(
                ask_all(
                    asked,
                    re.compile(options.only),
                    lambda of: shown.update(task, description=of, advance=1),
                    by_meaning=options.meaning,
                )
            )
            among = asyncio.run(at_scale(asked, options.memories, by_meaning=options.meaning))
        except MemoryRefused as refused:
            print(f"error: the relay did not take it: {refused}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    rows, unjudged = rows_of(answers), judged.count(False)
    sessions = sum(len(talk.sessions) for talk in asked)
    console = Console()
    console.width = max(console.width, 120)  # narrower, cells lose their numbers
    console.print(table(rows, f"{name}: {len(asked)} conversations, {sessions} sessions"))
    if unjudged:
        print(f"{unjudged} questions name no session that answers them, and were not asked")
    for what, numbers in among.items():
        print(f"{what}:", ", ".join(f"{key} {value:,.1f}" for key, value in numbers.items()))
    if options.json is not None:
        written = {**report(rows, name, unjudged), "at_scale": among}
        options.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
