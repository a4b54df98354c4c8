"""Write the conformance pages and proofs.txt, or report what is missing or stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.conformance.page import (
    MEMORY_INTRODUCTION,
    PROTOCOL_INTRODUCTION,
    Coverage,
    listing,
    page,
)
from tests.conformance.proofs import CollectionFailed, collected
from tests.conformance.statements import (
    HERE,
    Unknown,
    all_left_out,
    all_statements,
    of_memory,
    of_the_protocol,
)

DOCS = Path(__file__).parents[2] / "docs"
PROTOCOL = DOCS / "conformance.md"
MEMORY = DOCS / "conformance-memory.md"
PROOFS = HERE / "proofs.txt"


def main() -> int:
    """0: done, or nothing to report; 1: open or stale; 2: the tests cannot be collected."""
    args = arguments()
    try:
        coverage = Coverage(all_statements(), collected(), all_left_out())
        coverage.check_nothing_is_both()
    except (CollectionFailed, Unknown) as error:
        print(error, file=sys.stderr)
        return 2
    if args.missing is not None:
        return missing(coverage, args.missing)
    made = generated(coverage)
    report_lost_proofs(made[PROOFS])
    return check(coverage, made) if args.check else write(made)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--check", action="store_true", help="fail when a statement is open or a file is stale"
    )
    mode.add_argument(
        "--missing",
        nargs="?",
        const="",
        metavar="ID",
        help="list the open statements whose ids begin so (N01, N29-1, S)",
    )
    return parser.parse_args()


def generated(coverage: Coverage) -> dict[Path, str]:
    """Path → the text that the file must have."""
    return {
        PROTOCOL: page(PROTOCOL_INTRODUCTION, coverage.of(of_the_protocol())),
        MEMORY: page(MEMORY_INTRODUCTION, coverage.of(of_memory())),
        PROOFS: listing(coverage),
    }


def missing(coverage: Coverage, prefix: str) -> int:
    found = [each for each in coverage.open() if each.id.startswith(prefix)]
    for statement in found:
        print(f"{statement.id:8}{statement.level.value:13}{statement.text}")
    print(f"{len(found)} open", file=sys.stderr)
    return 1 if found else 0


def report_lost_proofs(made: str) -> None:
    """Print to stderr each proof of proofs.txt whose test or mark does not exist any more."""
    for line in lost_proofs(PROOFS.read_text("utf-8") if PROOFS.exists() else "", made):
        print(f"proof removed: {line}", file=sys.stderr)


def lost_proofs(committed: str, made: str) -> list[str]:
    kept = set(made.splitlines())
    return [line for line in committed.splitlines() if line not in kept]


def check(coverage: Coverage, made: dict[Path, str]) -> int:
    still_open = missing(coverage, "")
    stale = [path.name for path, text in made.items() if not is_fresh(path, text)]
    if stale:
        print(f"stale: {', '.join(stale)}; run python -m tests.conformance", file=sys.stderr)
    return 1 if stale or still_open else 0


def is_fresh(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def write(made: dict[Path, str]) -> int:
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
