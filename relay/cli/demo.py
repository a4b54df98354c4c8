"""`rookery demo`: a data folder with a team, two agents and a month of work, to look at."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import orjson

from relay.cli.data_folder import open_folder
from relay.cli.init import init_folder, new_key, write_key, write_new
from relay.cli.options import json_option, print_json
from relay.clock import unix_now
from relay.errors import StoreFault, UserError
from relay.facts import Origin
from relay.memory.aman.records import Clear, Preference, Summary, ToolCall, draft_of
from relay.memory.anamnesis.checks import Attestation, MemoryType
from relay.memory.anamnesis.records import (
    Entry,
    entry_draft,
    supersession_draft,
    timestamp_of,
    vouch_draft,
)
from relay.memory.fence import shell_word
from relay.memory.nmem.records import (
    Observation,
    Pin,
    Prompt,
    Session,
    Source,
    observation_draft,
    pin_draft,
    prompt_draft,
    session_draft,
)
from relay.memory.nmem.summary import Summary as SessionSummary
from relay.memory.snowclaw.config import GroupConfig, RespondMode, config_draft
from relay.memory.snowclaw.groups import GroupMemory
from relay.memory.snowclaw.keys import OfGroup, group_d, key_of, user_d
from relay.memory.snowclaw.records import record_draft
from relay.memory.snowclaw.users import UserMemory
from relay.memory.transcripts.lines import session_facts
from relay.memory.transcripts.plan import Plan
from relay.memory.transcripts.transcript import Transcript
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.memory.draft import Draft
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

_DAY_S: Final = 86_400
_PEOPLE: Final = {
    "ada": "Ada Lindqvist",
    "bea": "Bea Okafor",
    "chen": "Chen Wei",
    "dora": "Dora Falk",
    "emil": "Emil Sand",
    "rook": "Rook",
    "wren": "Wren",
}
_ABOUT: Final = {
    "ada": "Runs the workshop and this relay",
    "rook": "Agent: builds, deploys, watches the machines",
    "wren": "Agent: reads, writes and tidies the documents",
}
_AGENTS: Final = ("rook", "wren")
_POLICIES: Final = """\
# What this workshop has decided, beside the preset.

# Groups may be public; a new one is as its founder makes it. Admins decide who joins.
[groups]
new    = []
always = []
joins  = "review"

[[rule]]
name  = "nobody floods a group"
match = { kinds = [9, 11, 1111] }
rate  = { per = "author", burst = 20, per_minute = 30 }

[[retention]]
name  = "tool calls of two weeks"
match = { kinds = [30095] }
days  = 14

[[retention]]
name  = "what agents say, for three weeks"
match = { kinds = [9], authors = ["agent"] }
days  = 21
"""
_TALK: Final = (
    ("chen", "Morning. The label printer in bay 2 is offline again, third time this week."),
    ("rook", "It lost its lease at 07:12. I renewed it and pinned the address; it answers now."),
    ("bea", "Thank you! Can we have that written down somewhere?"),
    (
        "wren",
        "Done: handbook, page “Printers”, section “Lost lease”. Chen is named as the one who"
        " noticed.",
    ),
    ("ada", "Release on Thursday then? Staging looks quiet."),
    (
        "rook",
        "Staging: 214 checks green, none skipped. The slow one is the import of old orders, 41 s.",
    ),
    ("bea", "41 s is fine for a nightly job. Thursday 10:00 works for me."),
    ("dora", "I am away on Thursday, Emil has the pager."),
    ("chen", "Noted. I will do the customer mail on Wednesday."),
    ("ada", "Decided: release Thursday 10:00, Emil on call, Rook deploys, Bea signs off."),
    ("rook", "Scheduled for Thursday 10:00. I will ask for the sign-off here at 09:45."),
)


class _Team:
    """Keys by name, and the events that they have signed."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.keys: dict[str, SecretKey] = {name: new_key() for name in _PEOPLE}
        self.events: list[Event] = []

    def at(self, days: float) -> int:
        """Unix seconds of a time this many days ago."""
        return self.now - int(days * _DAY_S)

    def hex(self, name: str) -> str:
        return self.keys[name].pubkey

    def say(
        self, who: str, kind: int, days: float, *tags: Sequence[str], content: str = ""
    ) -> Event:
        listed = [list(tag) for tag in tags]
        self.events.append(self.keys[who].sign(kind, listed, content, self.at(days)))
        return self.events[-1]

    def put(self, who: str, draft: Draft) -> Event:
        self.events.append(self.keys[who].sign(*draft))
        return self.events[-1]


@click.command("demo", epilog="Example: rookery demo ./demo && rookery serve --data ./demo")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def demo_command(folder: Path, *, as_json: bool) -> None:
    """Make a data folder with a made-up team, two agents and a month of work. DIR is new or empty.

    For looking at the web console; the keys are in DIR/keys, the owner's is ada.nsec.
    """
    if folder.is_dir() and any(folder.iterdir()):
        # In a clone, a link of a name below could lead to any file or folder.
        raise UserError(f"{folder} is not empty; choose another folder")
    team = _Team(unix_now())
    agents = [team.hex(name) for name in _AGENTS]
    init_folder(folder, [team.hex("ada")], agents, "group", "Lindqvist workshop", None)
    write_new(folder / "policies" / "20-workshop.toml", _POLICIES, 0o600)
    for name, key in team.keys.items():
        write_key(folder / "keys" / f"{name}.nsec", key)
    _groups(team)
    _memory(team)
    asyncio.run(_store(folder, team))
    if as_json:
        key_file = folder / "keys" / "ada.nsec"
        print_json(
            {"folder": str(folder), "events": len(team.events), "owner_key_file": str(key_file)}
        )
        return
    click.echo(f"made {folder}: {len(team.events)} events; the owner's key: {folder}/keys/ada.nsec")
    click.echo(f"start it with: rookery serve --data {shell_word(folder)}")


async def _store(folder: Path, team: _Team) -> None:
    events = sorted(team.events, key=lambda event: event.created_at)
    async with open_folder(folder) as data:
        replies = await data.submit(events, Origin.TRUSTED_IMPORT)
    for event, (stored, text) in zip(events, replies, strict=True):
        if not stored and event.kind != kinds.JOIN_REQUEST:  # which waits for an admin
            raise StoreFault(f"an event of kind {event.kind} of the demo was refused: {text}")


def _groups(team: _Team) -> None:
    for number, (name, shown) in enumerate(_PEOPLE.items()):
        profile = {"name": name, "display_name": shown, "about": _ABOUT.get(name, "")}
        team.say(name, kinds.PROFILE, 31 - number / 100, content=orjson.dumps(profile).decode())
    made: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
        "town-hall": ("Town hall", "Announcements; everyone may read", (), tuple(_PEOPLE)),
        "workshop": (
            "Workshop",
            "Daily work: machines, releases, customers",
            ("private",),
            ("ada", "bea", "chen", "dora", "rook", "wren"),
        ),
        "handbook": ("Handbook", "How we do things", ("restricted",), ("bea", "wren", "chen")),
        "board": ("Board", "Budget and people", ("private", "hidden", "closed"), ("ada", "dora")),
    }
    for number, (group, (name, about, flags, members)) in enumerate(made.items()):
        h, days = ["h", group], 30 - number / 10
        team.say("ada", kinds.CREATE_GROUP, days, h)
        given = [[flag] for flag in flags]
        team.say(
            "ada", kinds.EDIT_METADATA, days - 0.01, h, ["name", name], ["about", about], *given
        )
        for place, member in enumerate(members):
            role = {"ada": ["admin"], "bea": ["moderator"], "rook": ["agent"], "wren": ["agent"]}
            named = ["p", team.hex(member), *role.get(member, [])]
            team.say("ada", kinds.PUT_USER, days - 0.02 - place / 1000, h, named)
    for number, (who, text) in enumerate(_TALK):
        team.say(who, kinds.CHAT, 2 - number / 12, ["h", "workshop"], content=text)
    for days in range(28, 2, -2):
        text = f"Night run of day {30 - days}: {180 + days} checks green, none red."
        team.say("rook", kinds.CHAT, days, ["h", "workshop"], content=text)
    notice = "The workshop is closed on Friday. The relay and its agents are not."
    team.say("ada", kinds.CHAT, 1, ["h", "town-hall"], content=notice)
    thanks = "Thanks. Could the notice go on the door too?"
    team.say("emil", kinds.CHAT, 0.8, ["h", "town-hall"], content=thanks)
    team.say("dora", kinds.CHAT, 3, ["h", "board"], content="Draft of next year's budget is ready.")
    wish = "I am on call on Thursday and need to see the releases."
    team.say("emil", kinds.JOIN_REQUEST, 0.2, ["h", "workshop"], content=wish)
    team.say("ada", kinds.CREATE_INVITE, 4, ["h", "workshop"], ["code", "winter-intake-7Q2f"])


def _memory(team: _Team) -> None:
    _aman(team)
    _snowclaw(team)
    _nmem(team)
    _anamnesis(team)
    _session(team)


def _aman(team: _Team) -> None:
    hk, sender = "group:workshop", team.hex("chen")

    def tool(name: str, content: str, days: float, *, done: bool = True) -> ToolCall:
        return ToolCall(hk, name, done, content, sender, "workshop", team.at(days))

    records = (
        Preference(hk, "Answer short, name the machine, give times as HH:MM.", team.at(20)),
        Summary(hk, "Printers, night runs, the move of the order import.", 212, team.at(9)),
        Clear(hk, None, team.at(8)),
        tool("renew_lease", "bay-2 printer, 192.0.2.17", 2),
        tool("run_checks", "214 green, 0 red, 41 s", 1.6),
        tool("deploy", "no sign-off yet", 0.4, done=False),
        Summary(hk, "Release on Thursday 10:00: Emil on call, Bea signs off.", 23, team.at(0.3)),
    )
    for record in records:
        team.put("rook", draft_of(record))


def _snowclaw(team: _Team) -> None:
    told = UserMemory(
        (("chen", team.at(28)), ("Chen Wei", team.at(20))),
        team.at(28),
        ("Looks after the printers.", "Writes the mails to customers on Wednesdays."),
        preferences={"language": "en", "length": "short"},
    )
    d = user_d(team.hex("chen"))
    team.put("wren", record_draft(told, d, team.at(12), "workshop"))
    noted = told.noted("Noticed the lost lease of bay 2 three times in a week.")
    team.put("wren", record_draft(noted, d, team.at(1.9), "workshop"))
    bea = UserMemory((("Bea Okafor", team.at(25)),), team.at(25), ("Signs off releases.",))
    team.put("wren", record_draft(bea, user_d(team.hex("bea")), team.at(6), "workshop"))
    group = GroupMemory(
        "Daily work of the workshop",
        tuple((key_of(team.hex(name)), _PEOPLE[name]) for name in ("ada", "bea", "chen")),
        ("machines", "releases"),
        (("Release Thursday 10:00", team.at(1.2)),),
        ("Night runs begin at 02:00.",),
    )
    team.put("wren", record_draft(group, group_d("workshop"), team.at(1.1), "workshop"))
    config = GroupConfig(RespondMode.MENTION, 40)
    team.put("ada", config_draft(OfGroup("workshop"), config, None, team.at(15)))


def _nmem(team: _Team) -> None:
    days = 5.0
    began = team.at(days)
    session = "5f0c2d9e-demo-deploy"
    project = "order-import"
    prompt = Prompt(session, began + 20, Source.USER, "Why does the order import take 4 minutes?")
    team.put("rook", prompt_draft(prompt))
    steps = (
        ("file_read", "Read", "import/orders.py", "420 lines; one query per order line"),
        ("search", "Grep", None, "select_order_line: 3 callers"),
        ("file_edit", "Edit", "import/orders.py", "lines are fetched 500 at a time"),
        ("command", "Bash", None, "make import-bench: 41.2 s, was 238.9 s"),
        ("git_commit", "Bash", None, "orders: fetch lines in batches"),
    )
    last = None
    for number, (kind, tool, path, text) in enumerate(steps):
        seen = Observation(
            session, began + 60 * (number + 1), kind, "PostToolUse", text, tool, path
        )
        last = team.put("rook", observation_draft(seen, project))
    assert last is not None
    team.put("rook", pin_draft(Pin(last.id, is_pinned=True, at=began + 900)))
    summary = SessionSummary(
        "Make the order import fast enough for a nightly job",
        ("One query per line was the cost",),
        ("Lines are fetched 500 at a time",),
        ("Run it on the old orders too",),
        ("import/orders.py",),
        ("import/orders.py",),
    )
    whole = Session(session, project, began, began + 1800, (("file_read", 1),), summary)
    team.put("rook", session_draft(whole))


def _anamnesis(team: _Team) -> None:
    def claim(who: str, text: str, days: float, *parents: str, kind: MemoryType) -> str:
        entry = Entry(
            text,
            team.hex(who),
            _PEOPLE[who],
            timestamp_of(team.at(days)),
            kind,
            parents,
            0.8,
            ("order-import",),
        )
        team.put(who, entry_draft(entry))
        return entry.hash

    slow = claim(
        "rook", "The order import takes 239 s on 120,000 lines.", 6, kind=MemoryType.EPISODIC
    )
    cause = claim(
        "rook",
        "The import asks the database once per order line.",
        5.5,
        slow,
        kind=MemoryType.INSIGHT,
    )
    old = claim(
        "rook",
        "Fetching lines in batches of 100 makes the import fast enough.",
        5.2,
        cause,
        kind=MemoryType.PROCEDURAL,
    )
    new = claim(
        "rook",
        "Batches of 500 lines: 41 s. Larger ones gain nothing.",
        4.9,
        cause,
        kind=MemoryType.PROCEDURAL,
    )
    claim("wren", "A nightly job may take up to a minute.", 4, new, kind=MemoryType.SEMANTIC)
    team.put("rook", supersession_draft(old, new, created_at=team.at(4.8)))
    vouchers = (
        ("wren", new, Attestation.CONFIRM, 0.9),
        ("ada", cause, Attestation.CONFIRM, 1.0),
        ("wren", slow, Attestation.PARTIAL, 0.6),
    )
    for who, of, attestation, confidence in vouchers:
        draft = vouch_draft(
            of,
            team.hex(who),
            name=_PEOPLE[who],
            created_at=team.at(4),
            confidence=confidence,
            attestation=attestation,
        )
        team.put(who, draft)


def _session(team: _Team) -> None:
    began, session = team.at(1.5), "7d1f6a52-demo-handbook"

    def line(number: int, role: str, content: object) -> bytes:
        at = datetime.fromtimestamp(began + 30 * number, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        parent = f"demo-{number - 1}" if number else None
        fields = {
            "type": role,
            "uuid": f"demo-{number}",
            "parentUuid": parent,
            "timestamp": at,
            "sessionId": session,
            "cwd": "/home/mira/handbook",
            "message": {"role": role, "content": content},
        }
        return orjson.dumps(fields) + b"\n"

    lines = [
        line(0, "user", "Write down how a printer that lost its lease comes back."),
        line(
            1,
            "assistant",
            [
                {"type": "text", "text": "I look at what Rook did this morning."},
                {
                    "type": "tool_use",
                    "id": "t1",
                    "name": "Read",
                    "input": {"file_path": "printers.md"},
                },
            ],
        ),
        line(
            2,
            "user",
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": "# Printers\n\n## Paper\n\nA4 only.",
                }
            ],
        ),
        line(
            3,
            "assistant",
            [
                {
                    "type": "tool_use",
                    "id": "t2",
                    "name": "Edit",
                    "input": {
                        "file_path": "printers.md",
                        "old_string": "A4 only.",
                        "new_string": "A4 only.\n\n## Lost lease\n\nRenew it.",
                    },
                }
            ],
        ),
        line(
            4, "user", [{"type": "tool_result", "tool_use_id": "t2", "content": "1 line changed"}]
        ),
        line(5, "assistant", [{"type": "text", "text": "Done: section “Lost lease”."}]),
    ]
    facts = session_facts(lines)
    made = Transcript(team.hex("wren"), facts, stem=session, now_ms=began * 1000, plan=Plan())
    for raw in lines:
        for draft in made.drafts(raw):
            team.put("wren", draft)
