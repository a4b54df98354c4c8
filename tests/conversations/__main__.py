"""Play the scripts to any relay, or without a URL to relays of ours."""

from __future__ import annotations

import argparse
import asyncio
import re
import secrets
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from relay.nostr.keys import SecretKey
from tests.conversations.other import ROLES, OtherRelay, document_at
from tests.conversations.relays import Relays
from tests.conversations.runner import Manner, NotThere, Relay, is_there, play
from tests.conversations.script import BadScript, Script, all_paths, script_file

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = """\
examples:
  python -m tests.conversations wss://relay.example
  python -m tests.conversations wss://relay.example --texts prefix --only 'nip(01|09)/'
  python -m tests.conversations ws://127.0.0.1:7777 --preset group --owner nsec1…
  python -m tests.conversations tests/conversations/nip01/limit.nostr

The scripts write events under keys that are new each time; --owner, --robot and --rover give the
keys of an owner and two agents there. Ends with 0 when no script failed, 1 when one did, 2 when
there was nothing to play or nobody to play it to.
"""
WIDTH = 7


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conversations",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", help="ws:// or wss://; without it relays of ours are run")
    parser.add_argument("scripts", nargs="*", type=Path, help="these .nostr files only")
    parser.add_argument(
        "--only",
        metavar="REGEX",
        type=re.compile,
        default=re.compile(""),
        help="scripts whose path or title has this",
    )
    parser.add_argument(
        "--texts",
        choices=["whole", "prefix"],
        default="whole",
        help="prefix: of a refusal only its word counts",
    )
    parser.add_argument(
        "--preset",
        choices=["open", "group"],
        default="open",
        help="what the relay at URL is like (open: anybody writes)",
    )
    for role, whose in zip(ROLES, ("an owner", "an agent", "another agent"), strict=True):
        parser.add_argument(
            f"--{role}",
            metavar="KEY",
            type=SecretKey.parse,
            help=f"the secret key of {whose} of that relay",
        )
    parser.add_argument(
        "--patience", type=float, default=8.0, metavar="SECONDS", help="how long an answer may take"
    )
    args = parser.parse_args(given)
    if args.url and not args.url.startswith(("ws://", "wss://")):
        args.scripts.insert(0, Path(args.url))
        args.url = None
    return args


def wanted(args: argparse.Namespace) -> list[Script]:
    """Raises BadScript, OSError."""
    scripts = [script_file(path) for path in args.scripts or all_paths()]
    return [script for script in scripts if args.only.search(f"{script.path} {script.title}")]


def other_relay(args: argparse.Namespace) -> OtherRelay | None:
    """Raises NotThere."""
    if not args.url:
        return None
    asyncio.run(is_there(args.url))
    roles = {role: key for role in ROLES if (key := getattr(args, role))}
    return OtherRelay(args.url, args.preset, roles, document_at(args.url))


def main(given: Sequence[str] | None = None) -> int:
    args = arguments(given)
    try:
        scripts = wanted(args)
        other = other_relay(args)
    except (BadScript, NotThere, OSError) as wrong:
        print(wrong, file=sys.stderr)
        return 2
    if not scripts:
        print("no script has that in its path or title", file=sys.stderr)
        return 2
    manner = Manner(args.texts, args.patience, salt=secrets.token_hex(8))
    return asyncio.run(play_all(scripts, other, manner))


async def play_all(scripts: Sequence[Script], other: OtherRelay | None, manner: Manner) -> int:
    counts: dict[str, Counter[str]] = {}
    async with Relays() as relays:
        for number, script in enumerate(scripts, 1):
            verdict, why = await played(script, other, relays, manner)
            counts.setdefault(script.path.rpartition("/")[0], Counter())[verdict] += 1
            place = f"[{number}/{len(scripts)}]"
            print(f"{place:>9} {verdict:{WIDTH}} {script.path}: {script.title}", flush=True)
            if why:
                print(f"{'':10}{why}".replace("\n", f"\n{'':10}"), flush=True)
    print(table(counts))
    return 1 if any(verdicts["failed"] for verdicts in counts.values()) else 0


async def played(
    script: Script, other: OtherRelay | None, relays: Relays, manner: Manner
) -> tuple[str, str | None]:
    """(ok, failed or skipped; why)."""
    why_not = other.why_not(script) if other else None
    if why_not is not None:
        return "skipped", why_not
    try:
        relay: Relay = other or await relays.relay_for(script)
        await play(script, relay, manner)
    except AssertionError as failed:
        return "failed", str(failed)
    return "ok", None


def table(counts: dict[str, Counter[str]]) -> str:
    """A row for each folder, and one for all."""
    verdicts = ("ok", "failed", "skipped")
    total = sum(counts.values(), Counter[str]())
    rows: list[tuple[str, ...]] = [("", *verdicts)]
    rows += [
        (name, *(str(row[verdict]) for verdict in verdicts))
        for name, row in [*sorted(counts.items()), ("all", total)]
    ]
    widest = max(len(row[0]) for row in rows)
    lines = [f"{name:{widest}}" + "".join(f"{cell:>9}" for cell in row) for name, *row in rows]
    return "\n".join(["", *lines])


if __name__ == "__main__":
    sys.exit(main())
