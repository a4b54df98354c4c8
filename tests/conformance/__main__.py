"""Write docs/conformance.md and the tables of docs/memory.md, or say what is wrong with them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.conformance.page import UsageCounter, page, page_with_tables
from tests.conformance.proofs import Broken, collected
from tests.conformance.statements import (
    Unknown,
    all_left_out,
    all_statements,
    of_memory,
    of_the_protocol,
)

DOCS = Path(__file__).parents[2] / "docs"
PROTOCOL = DOCS / "conformance.md"
MEMORY = DOCS / "memory.md"


def main() -> int:
    """0: done or all well; 1: something is open or stale; 2: the tests cannot be read."""
    args = arguments()
    try:
        ledger = UsageCounter(all_statements(), collected(), all_left_out())
        ledger.check_nothing_is_both()
        pages = pages_of(ledger)
    except (Broken, Unknown) as wrong:
        print(wrong, file=sys.stderr)
        return 2
    if args.missing is not None:
        return missing(ledger, args.missing)
    return check(ledger, pages) if args.check else write(pages)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="fail when a statement is open or the page is stale"
    )
    what.add_argument(
        "--missing",
        nargs="?",
        const="",
        metavar="ID",
        help="list what is open, of ids that begin so (N01, N29-1, S)",
    )
    return parser.parse_args()


def pages_of(ledger: UsageCounter) -> dict[Path, str]:
    """Each page as it should be. Raises Unknown."""
    written = MEMORY.read_text(encoding="utf-8")
    return {
        PROTOCOL: page(ledger.of(of_the_protocol())),
        MEMORY: page_with_tables(written, ledger.of(of_memory())),
    }


def missing(ledger: UsageCounter, beginning: str) -> int:
    found = [each for each in ledger.open() if each.id.startswith(beginning)]
    for statement in found:
        print(f"{statement.id:8}{statement.level.value:13}{statement.text}")
    print(f"{len(found)} open", file=sys.stderr)
    return 1 if found else 0


def check(ledger: UsageCounter, pages: dict[Path, str]) -> int:
    still_open = missing(ledger, "")
    stale = [path.name for path, text in pages.items() if not is_written(path, text)]
    if stale:
        print(f"stale: {', '.join(stale)}; run python -m tests.conformance", file=sys.stderr)
    return 1 if stale or still_open else 0


def is_written(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def write(pages: dict[Path, str]) -> int:
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
