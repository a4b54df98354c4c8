"""Write docs/conformance.md, or say what is wrong with it: `python -m tests.conformance`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.conformance.page import Ledger, page
from tests.conformance.proofs import Broken, collected
from tests.conformance.statements import Unknown, all_left_out, all_statements

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"


def main() -> int:
    """0: done or all well; 1: something is open or stale; 2: the tests cannot be read."""
    args = arguments()
    try:
        ledger = Ledger(all_statements(), collected(), all_left_out())
        ledger.check_nothing_is_both()
    except (Broken, Unknown) as wrong:
        print(wrong, file=sys.stderr)
        return 2
    if args.missing is not None:
        return missing(ledger, args.missing)
    return check(ledger) if args.check else write(ledger)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true",
                      help="fail when a statement is open or the page is stale")  # fmt: skip
    what.add_argument("--missing", nargs="?", const="", metavar="ID",
                      help="list what is open, of ids that begin so (N01, N29-1, Z)")  # fmt: skip
    return parser.parse_args()


def missing(ledger: Ledger, beginning: str) -> int:
    found = [each for each in ledger.open() if each.id.startswith(beginning)]
    for statement in found:
        print(f"{statement.id:8}{statement.level.value:9}{statement.text}")
    print(f"{len(found)} open", file=sys.stderr)
    return 1 if found else 0


def check(ledger: Ledger) -> int:
    still_open = missing(ledger, "")
    stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(ledger)
    if stale:
        print(f"{PAGE.name} is stale: run python -m tests.conformance", file=sys.stderr)
    return 1 if stale or still_open else 0


def write(ledger: Ledger) -> int:
    PAGE.write_text(page(ledger), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
