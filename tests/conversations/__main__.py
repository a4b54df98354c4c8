"""Play the scripts to any relay: `python -m tests.conversations wss://relay.example`."""

from __future__ import annotations

import argparse
import asyncio
import re
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path

from relay.nostr.keys import SecretKey
from tests.conversations.relays import RelayDied, Relays
from tests.conversations.script import BadScript, Script, all_paths, script_file
from tests.conversations.stage import Failed, Manner, Relay, play


@dataclass
class OtherRelay:
    """One that somebody else runs."""

    url: str
    preset: str
    roles: dict[str, SecretKey] = field(default_factory=dict)

    async def restart(self) -> None:
        raise Failed("a relay of somebody else is not ours to restart")

    def why_not(self, script: Script) -> str | None:
        """Why this script cannot be played there."""
        if script.preset != self.preset:
            return f"is for preset {script.preset}"
        if script.policy:
            return "brings rules of its own"
        if script.restarts:
            return "restarts the relay"
        missing = {"owner", "robot", "rover"} & set(script.people) - set(self.roles)
        return f"needs the key of {', '.join(sorted(missing))}" if missing else None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conversations", description=__doc__)
    parser.add_argument("url", nargs="?", help="ws:// or wss://; without it relays of ours are run")
    parser.add_argument("scripts", nargs="*", type=Path, help="these .nostr files only")
    parser.add_argument("--only", metavar="REGEX", help="scripts whose path or title has this")
    parser.add_argument("--texts", choices=["whole", "prefix"], default="whole",
                        help="prefix: of a refusal only its word counts")  # fmt: skip
    parser.add_argument("--preset", choices=["open", "group"], default="open",
                        help="what the relay at URL is like (open: anybody writes)")  # fmt: skip
    for role, whose in (("owner", "an owner"), ("robot", "an agent"), ("rover", "another agent")):
        parser.add_argument(f"--{role}", metavar="KEY", type=SecretKey.parse,
                            help=f"the secret key of {whose} of that relay")  # fmt: skip
    parser.add_argument("--patience", type=float, default=8.0, metavar="SECONDS",
                        help="how long an answer may take")  # fmt: skip
    return parser.parse_args()


def wanted(args: argparse.Namespace) -> list[Script]:
    paths = list(args.scripts)
    if args.url and not args.url.startswith(("ws://", "wss://")):
        paths.insert(0, Path(args.url))
        args.url = None
    scripts = [script_file(path) for path in paths or all_paths()]
    pattern = re.compile(args.only or "", re.IGNORECASE)
    return [script for script in scripts if pattern.search(f"{script.path} {script.title}")]


def main() -> int:
    args = arguments()
    try:
        scripts = wanted(args)
    except (BadScript, OSError) as wrong:
        print(wrong, file=sys.stderr)
        return 2
    roles = {role: key for role in ("owner", "robot", "rover") if (key := getattr(args, role))}
    other = OtherRelay(args.url, args.preset, roles) if args.url else None
    manner = Manner(args.texts, args.patience, salt=secrets.token_hex(8))
    counts = {"ok": 0, "failed": 0, "skipped": 0}
    with Relays() as relays:
        for script in scripts:
            why_not = other.why_not(script) if other else None
            verdict, text = ("skipped", why_not) if why_not else ("ok", None)
            if not why_not:
                try:
                    relay: Relay = other or relays.relay_for(script)
                    asyncio.run(play(script, relay, manner))
                except (Failed, RelayDied) as failed:
                    verdict, text = "failed", str(failed)
            counts[verdict] += 1
            print(f"{verdict:8}{script.path}: {script.title}")
            if text:
                print(f"        {text}".replace("\n", "\n        "))
    print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
