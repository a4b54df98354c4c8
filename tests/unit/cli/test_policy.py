"""`rookery policy`: the tools of an admin, on folders where no relay runs.

What `check`, `show` and `explain` say of files alone stands in tests/unit/policies/test_cli.py,
what needs a running relay in tests/e2e/test_policy_tools.py.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import run
from relay.cli.data_folder import open_folder
from relay.facts import Origin
from relay.memory.anamnesis.checks import content_hash
from relay.nostr.filters import Filter
from tests.cast import alice, bob, owner, robot, stranger
from tests.harness.clock import now
from tests.harness.folders import written
from tests.unit.memory.anamnesis.making import told as told_by

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event

LAST_YEAR = 1_750_000_000
FOUNDED = owner.sign(9007, [["h", "tea"]], "", LAST_YEAR)
INVITED = owner.sign(9000, [["h", "tea"], ["p", alice.pubkey]], "", LAST_YEAR + 10)
SAID = alice.sign(9, [["h", "tea"]], "hello", LAST_YEAR + 20)
NOTE = alice.sign(1, [], "a note", LAST_YEAR + 30)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A relay's folder with a private group: the owner and alice are in it."""
    folder = tmp_path_factory.mktemp("home") / "data"
    assert run(["init", str(folder), "--owner", owner.npub, "--agent", robot.npub]) == 0
    asyncio.run(_stored(folder, [FOUNDED, INVITED, SAID, NOTE]))
    return folder


async def _stored(folder: Path, events: list[Event]) -> None:
    async with open_folder(folder) as opened:
        answers = await opened.submit(events, Origin.IMPORT)
        assert answers == [(True, "")] * len(events)


async def _held(folder: Path) -> tuple[int, list[bytes]]:
    """The head, and every row."""
    async with open_folder(folder) as opened:
        rows = [raw async for page in opened.events(Filter()) for raw in page]
        return await opened.head(), rows


def saved(folder: Path, value: object) -> str:
    path = folder / "asked.json"
    path.write_text(json.dumps(value))
    return str(path)


def as_values(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(event.raw)
    return fields


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of `rookery policy …`."""
    capsys.readouterr()
    code = run(["policy", *args, "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, told


# -- check ----------------------------------------------------------------------------------------


def test_warnings_are_told_by_line_and_are_no_faults_unless_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, a='\n[[rule]]\nname = "x"\nmatch = { kinds = [] }\nwrite = ["known"]\n')
    assert run(["policy", "check", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert f'{tmp_path}/a.toml:2: "x" can never match: kinds is empty (warning)' in said
    assert said[-1].startswith("ok: ")
    assert ", 1 warning, " in said[-1]
    assert run(["policy", "check", str(tmp_path), "--strict"]) == 1
    capsys.readouterr()
    code, told = answer(capsys, "check", str(tmp_path), "--strict")
    assert code == 1
    assert told["ok"] is True
    assert told["warnings"] == [
        {"file": f"{tmp_path}/a.toml", "line": 2, "text": '"x" can never match: kinds is empty'}
    ]


def test_a_folder_without_warnings_is_right_when_strict_too(home: Path) -> None:
    assert run(["policy", "check", "--strict", "--data", str(home)]) == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n[rule.match]\nkinds = [1]", 2),
        ("\n[[limits]]\nmax_event_tags = 1", 2),
        ("\n\n[[memory.aman]]\ntie = 'high'", 3),
        ('\n[[rule]]\nname = "a"\nwrite = ["owner"]\n[[rule.match]]\nkinds = [1]', 5),
        ("\n[[actors.owners]]\nx = 1", 2),
    ],
)
def test_a_table_of_the_wrong_kind_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, a=text)
    assert run(["policy", "check", str(tmp_path)]) == 1
    [fault] = capsys.readouterr().err.splitlines()
    assert fault.startswith(f"{tmp_path}/a.toml:{line}: ")


def test_nothing_is_cut_however_narrow_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    written(deep, a='[[rule]]\nname = "x"\nmatch = { kinds = [30023] }\nread = ["member"]\n')
    for command in ("check", "show"):
        assert run(["policy", command, str(deep)]) == 0
        assert f"{deep}" in capsys.readouterr().out
    assert run(["policy", "show", str(deep)]) == 0
    assert f"    x · {deep}/a.toml:1\n" in capsys.readouterr().out


# -- show -----------------------------------------------------------------------------------------


def test_show_is_a_page_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(
        tmp_path,
        a=f'[actors]\nowners = ["{owner.npub}"]\n'
        "[[actors.household]]\n"
        f'name = "attic"\nowner = "{bob.npub}"\nagents = ["{robot.npub}"]\n'
        "[limits]\ncreated_at_lower = 1209600\n"
        '[[rule]]\nname = "articles"\nmatch = { kinds = [30023, 40, "1000-1999"] }\n'
        'except = { d_prefix = "draft:" }\nwrite = ["owner"]\nrequire = ["title"]\n'
        '[[rule]]\nname = "slowly"\nmatch = { kinds = [9], h = ["tea"] }\n'
        'rate = { per = "author", burst = 5, per_minute = 30 }\n'
        '[[rule]]\nname = "sparing"\nmatch = { kinds = [30023] }\n'
        'quota = { per = "author", events = 100 }\n'
        '[[rule]]\nname = "in all"\nmatch = { kinds = [1984] }\n'
        'rate = { per = "relay", burst = 9, per_minute = 3 }\n'
        'quota = { per = "relay", bytes = 1000 }\n'
        '[[rule]]\nname = "stay"\nmatch = { kinds = [0] }\nread = ["member", "tag:scope"]\n'
        '[[retention]]\nname = "final"\nmatch = { kinds = [30023] }\nkeep = "first"\n'
        '[[retention]]\nname = "dear"\nmatch = { kinds = [20] }\nnever = true\n'
        f'[memory]\nreject_patterns = ["x+y"]\n[memory.envelopes]\nkeys = ["{bob.npub}"]\n'
        '[memory.aman]\nanonymous_read = "encrypted"\n',
    )
    assert run(["policy", "show", str(tmp_path)]) == 0
    page = capsys.readouterr().out
    articles = "kind 40, kinds 1000-1999, articles (30023)"
    articles += "; does not apply to events under d draft:…"
    for line in (
        f"  owners: {owner.npub}",
        f"  household attic: owner: {bob.npub}",
        f"  owners: {articles}",
        f"      articles · {tmp_path}/a.toml:9",
        f"  {articles}: tags title",
        "  chat (9) in tea: 30 a minute per author, 5 at once",
        "  articles (30023): 100 events stored per author",
        "  reports (1984): 3 a minute for the whole relay, 9 at once, "
        "1000 bytes a day for the whole relay",
        "  members of any group, the keys in its scope tags: profiles (0)",
        "  articles (30023): the first version",
        "  clears (30096): while there are summaries (30094), tool history (30095) of the same "
        "author and hk, no newer by ts",
        "  kind 20: always",
        f"      dear · {tmp_path}/a.toml:36",
        "  created_at at most 15 min in the future, 14 d in the past",
        "  no unencrypted memory may match: 1 pattern",
        "  aman: with equal ts the highest id is kept; ts and created_at: order; hashes are not "
        "verified; read without a login: encrypted",
        "  sealed envelopes without a login: 1 key",
        "  created by: owners, agents",
        "  joining: with an invite code",
        "  invited by: owners",
        "  an invite code admits 1 key and is valid for 7 days",
    ):
        assert f"{line}\n" in page


def test_show_of_ones_own_rules_says_when_there_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with the preset open, which disables a packaged rule."""
    written(tmp_path, a='[[rule]]\nname = "known people write"\nenabled = false\n')
    assert run(["policy", "show", str(tmp_path), "--mine"]) == 0
    assert "They add no rules" in capsys.readouterr().out


def test_show_of_ones_own_rules_names_no_packaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(
        tmp_path,
        a='[[rule]]\nname = "slowly"\nmatch = { kinds = [9] }\n'
        'rate = { per = "author", burst = 5, per_minute = 30 }\n'
        '[[retention]]\nname = "dear"\nmatch = { kinds = [20] }\nnever = true\n',
    )
    assert run(["policy", "show", str(tmp_path), "--mine"]) == 0
    page = capsys.readouterr().out
    assert page.count(f" · {tmp_path}/a.toml:") == 2
    assert page.count(" · ") == 2
    assert "Groups" not in page
    assert run(["policy", "show", str(tmp_path), "--mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [rule["name"] for rules in shown.values() for rule in rules] == ["slowly", "dear"]


# -- explain --------------------------------------------------------------------------------------


def test_explain_knows_who_is_in_a_group(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = saved(tmp_path, as_values(alice.sign(9, [["h", "tea"]], "hi", now())))
    code, told = answer(capsys, "explain", mine, "--data", str(home))
    assert (code, told["ok"], told["message"], told["store"]) == (0, True, "", True)
    theirs = saved(tmp_path, as_values(robot.sign(9, [["h", "tea"]], "hi", now())))
    code, told = answer(capsys, "explain", theirs, "--data", str(home))
    assert (code, told["ok"]) == (1, False)
    assert told["message"].startswith("restricted: ")
    assert told["file"] is None  # no rule of a file: the group itself
    assert [step["says"] for step in told["steps"]] == [None] * len(told["steps"])


def test_explain_gives_the_answer_to_what_is_stored_already(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, as_values(NOTE))
    code, told = answer(capsys, "explain", path, "--data", str(home))
    assert (code, told["message"]) == (0, "duplicate: already have this event")


def test_explain_says_when_the_form_is_wrong_before_rules_are_asked(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, as_values(alice.sign(9, [["h", "tea"], ["h", "den"]], "hi", now())))
    code, told = answer(capsys, "explain", path, "--data", str(home))
    assert (code, told["ok"], told["message"]) == (1, False, "invalid: one h tag only")
    assert run(["policy", "explain", path, "--data", str(home)]) == 1
    assert "decided by: the form of the event" in capsys.readouterr().out


def test_explain_changes_nothing(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = asyncio.run(_held(home))
    ending = saved(tmp_path, as_values(owner.sign(9008, [["h", "tea"]], "", now())))
    for _ in range(2):
        code, _ = answer(capsys, "explain", ending, "--data", str(home))
        assert code == 0
    vanishing = owner.sign(62, [["relay", "ALL_RELAYS"]], "", now())
    asked = saved(tmp_path, as_values(vanishing))
    assert answer(capsys, "explain", asked, "--data", str(home))[0] == 0
    assert asyncio.run(_held(home)) == before
    mine = saved(tmp_path, as_values(alice.sign(9, [["h", "tea"]], "still", now())))
    assert answer(capsys, "explain", mine, "--data", str(home))[0] == 0


@pytest.mark.parametrize("word", ["owner", "agent"])
def test_of_a_households_event_the_words_of_read_mean_its_own_people(
    tmp_path: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    written(
        files,
        a=f'[actors]\nowners = ["{owner.npub}"]\nagents = ["{alice.npub}"]\n'
        "[[actors.household]]\n"
        f'name = "attic"\nowner = "{bob.npub}"\nagents = ["{robot.npub}"]\n',
    )
    config = {"kind": 30078, "pubkey": bob.npub, "tags": [["d", "snowclaw:config:global"]]}
    path = saved(tmp_path, config)
    assert answer(capsys, "explain", path, "--read", word, "--data", str(files))[0] == 0
    theirs = answer(capsys, "explain", path, "--read", alice.npub, "--data", str(files))
    assert theirs[0] == 1
    invite = saved(tmp_path, {"kind": 9009, "pubkey": robot.npub, "tags": [["h", "tea"]]})
    by_owner = answer(capsys, "explain", invite, "--read", "owner", "--data", str(files))
    by_head = answer(capsys, "explain", invite, "--read", bob.npub, "--data", str(files))
    assert (by_owner[0], by_head[0]) == (0, 1), "a record of a group"


def test_explain_says_when_there_is_no_store(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    path = saved(tmp_path, as_values(alice.sign(1, [], "hi", now())))
    assert run(["policy", "explain", path, "--data", str(files)]) == 1
    assert "note: no store here: judged as by a relay without groups" in capsys.readouterr().out
    assert run(["policy", "explain", path, "--data", str(home)]) == 0
    assert "no store here" not in capsys.readouterr().out


@pytest.mark.proves("X-22")
def test_explain_follows_an_event_to_what_it_points_to(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = "what is said of memory entries outside groups"
    for number, text in enumerate(["of the group", "of nobody"]):
        hashed = content_hash(text)
        found = {
            "kind": 30078,
            "pubkey": robot.npub,
            "tags": [
                ["d", f"anamnesis:vouch:{hashed}"],
                ["x", hashed],
            ],
        }
        path = saved(tmp_path, found)
        if number == 0:
            robots = [["h", "tea"], ["p", robot.pubkey]]
            came, left = (owner.sign(kind, robots, "", now() - 9) for kind in (9000, 9001))
            entry = told_by(robot, text, at=now() - 9, group="tea")
            asyncio.run(_stored(home, [came, entry, left]))
        for reader, readable in ((alice.npub, number == 0), (bob.npub, False), ("owner", True)):
            code, told = answer(capsys, "explain", "--read", reader, path, "--data", str(home))
            assert (code == 0) is told["readable"] is readable, (number, reader)
            steps = {step["rule"]: step for step in told["steps"]}
            assert steps[rule]["allowed"] is readable
            assert steps[rule]["readers"] == "author, owner, target"


def test_show_says_where_a_target_leads(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "show", "--data", str(home)]) == 0
    assert (
        "its author, readers of app records (78) under d anamnesis:memory:… with the same x:"
        " app data"
    ) in capsys.readouterr().out
    _, told = answer(capsys, "show", "--data", str(home))
    [target] = [rule["target"] for rule in told["read_rules"] if rule["target"] is not None]
    assert target == {"kinds": [78], "tag": "x", "d_prefix": "anamnesis:memory:"}


def test_policies_beside_those_in_use_are_judged_by_themselves(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, as_values(stranger.sign(1, [], "hi", now())))
    other = home / "tried"
    other.mkdir()
    written(other, a='[[rule]]\nname = "known people write"\nenabled = false\n')
    code, told = answer(capsys, "explain", path, "--data", str(other))
    assert (code, told["ok"], told["store"]) == (0, True, False)
    for spelt in (home, home / "policies"):
        code, told = answer(capsys, "explain", path, "--data", str(spelt))
        assert (code, told["rule"], told["store"]) == (1, "known people write", True)


@pytest.mark.parametrize("spelt", [owner.npub, owner.pubkey])
def test_a_draft_is_judged_without_id_and_signature(
    home: Path, tmp_path: Path, spelt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, {"kind": 30023, "tags": [["d", "x"]], "pubkey": spelt})
    code, told = answer(capsys, "explain", path, "--data", str(home))
    assert (code, told["ok"], told["draft"]) == (0, True, True)
    path = saved(tmp_path, {"kind": 30023, "content": "by nobody in particular"})
    assert run(["policy", "explain", path, "--data", str(home)]) == 1
    said = capsys.readouterr().out
    assert "OK false restricted: only people known here may write" in said
    assert "note: a draft, judged as if nobody known had signed it" in said


@pytest.mark.parametrize(
    ("draft", "fault"),
    [
        ({"kind": "1"}, "kind: "),
        ({"kind": 1, "tags": [[1]]}, "tags"),
        ({"kind": 1, "tag": []}, "tag: is no field of an event"),
        ({"kind": 70000}, "kind: "),
        ([], "event: must be a JSON object"),
    ],
)
def test_a_draft_that_is_none_is_told_by_its_field(
    home: Path, tmp_path: Path, draft: object, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "explain", saved(tmp_path, draft), "--data", str(home)]) == 1
    assert f"OK false invalid: {fault}" in capsys.readouterr().out


def test_explain_takes_logins_for_protected_events(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, as_values(alice.sign(1, [["-"]], "hi", now())))
    asked = ("explain", path, "--data", str(home))
    assert answer(capsys, *asked)[0] == 0
    code, told = answer(capsys, *asked, "--as", "nobody")
    assert (code, told["rule"]) == (1, "protected events")
    code, told = answer(capsys, *asked, "--as", bob.npub)
    assert code == 1
    code, told = answer(capsys, *asked, "--as", bob.npub, "--as", alice.npub)
    assert code == 0


def test_explain_says_who_of_a_group_reads_it(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, as_values(SAID))
    for viewer, code in (
        (alice.npub, 0),
        ("author", 0),
        ("owner", 0),
        (owner.pubkey, 0),
        (stranger.npub, 1),
        ("nobody", 1),
        ("agent", 1),
    ):
        got, told = answer(capsys, "explain", path, "--data", str(home), "--read", viewer)
        assert (got, told["readable"]) == (code, code == 0), viewer
        assert [step["rule"] for step in told["steps"]] == ["rows of a group"]
    assert run(["policy", "explain", path, "--data", str(home), "--read", "nobdy"]) == 2


def test_no_name_of_a_policy_file_controls_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Git keeps any name, and the folder may be of a clone."""
    files = tmp_path / "a\x1b]0;t\x07"
    files.mkdir()
    rule = '[[rule]]\nname = "a\\u001b]0;t\\u0007"\nmatch = {}\nread = ["owner"]\n'
    (files / "20-\x1b]0;t\x07\u202e.toml").write_text(
        f'[actors]\nowners = ["{owner.npub}"]\n{rule}'
    )
    path = saved(tmp_path, as_values(NOTE))
    assert run(["policy", "explain", path, "--data", str(files), "--read", "nobody"]) == 1
    assert run(["policy", "check", str(files)]) == 0
    printed = capsys.readouterr().out
    assert "not readable, by a�]0;t�" in printed
    assert "a�]0;t�\n" in printed
    assert all(line.isprintable() for line in printed.splitlines()), printed


def test_a_word_that_names_nobody_is_no_viewer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, as_values(NOTE))
    assert run(["policy", "explain", path, "--data", str(tmp_path), "--read", "owner"]) == 1
    assert "[actors] owners is empty: give a key" in capsys.readouterr().err


# -- test -----------------------------------------------------------------------------------------

CASE = '[[case]]\nsays = "x"\nevent = {{ kind = 1, by = "{by}" }}\nwant = "{want}"\n'


def test_cases_run_against_the_folder_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = tmp_path / "cases.toml"
    cases.write_text(CASE.format(by="stranger", want="accept"))
    monkeypatch.chdir(tmp_path)
    assert run(["policy", "test", "cases.toml"]) == 1
    assert "against the packaged policies (" in capsys.readouterr().out
    (tmp_path / "data" / "policies").mkdir(parents=True)
    off = '[[rule]]\nname = "known people write"\nenabled = false'
    written(tmp_path / "data" / "policies", a=off)
    assert run(["policy", "test", "cases.toml"]) == 0
    assert capsys.readouterr().out == "1 case, 1 passed, 0 failed, against data/policies\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            CASE.format(by="x", want="acept"),
            '4: want of a case about writing cannot be "acept"; did you mean "accept"?',
        ),
        (CASE.format(by="x", want="shown"), "4: want of a case about writing cannot be"),
        (
            CASE.format(by="x", want="accept") + 'reads = "y"\n',
            '4: want of a case with reads cannot be "accept"',
        ),
        (
            '[[case]]\nsays = "x"\nevent = { kind = 1, content = 5 }\nwant = "accept"\n',
            "3: content must be a text",
        ),
        ('[[case]]\nsays = "x"\nevent = { kind = 1, age = "5" }\nwant = "accept"\n', "3: age must"),
        (
            '[[case]]\nsays = "x"\nevent = { kind = 1 }\nwant = "accept"\ngiven = { kinds = 5 }\n',
            "5: kinds must be a list of numbers",
        ),
        (
            'preset = "grup"\n' + CASE.format(by="x", want="accept"),
            '1: there is no preset "grup"; did you mean "group"?',
        ),
        ("[[case]]\nsays = \n", "2: not valid TOML"),
        ("policy = 5\n" + CASE.format(by="x", want="accept"), "1: policy must be a string"),
        ('preset = "group"\n', " has no [[case]]"),
        (
            'policy = """\n[[rule]]\nname = "x"\nwrite = ["ownr"]\n"""\n'
            + CASE.format(by="x", want="accept"),
            '4: unknown who-word "ownr" in write; did you mean "owner"?',
        ),
    ],
)
def test_a_fault_in_a_table_of_cases_is_told_by_its_line(
    tmp_path: Path, text: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = tmp_path / "cases.toml"
    cases.write_text(text)
    assert run(["policy", "test", str(cases), "--data", str(tmp_path)]) == 1
    assert f"{cases}:{fault}" in capsys.readouterr().err


def test_a_fault_of_the_folder_is_told_where_the_admin_finds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    written(folder, a="[limits]\nx = 1\n")
    cases = tmp_path / "cases.toml"
    cases.write_text(CASE.format(by="x", want="accept"))
    assert run(["policy", "test", str(cases), "--data", str(folder)]) == 1
    assert f"{folder}/a.toml:2: unknown key" in capsys.readouterr().err


# -- diff -----------------------------------------------------------------------------------------


def test_diff_says_what_new_policies_would_have_made_of_the_history(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    new.mkdir()
    written(new, **{path.stem: path.read_text() for path in (home / "policies").glob("*.toml")})
    written(
        new,
        z='[[rule]]\nname = "owners write notes"\nmatch = { kinds = [1] }\nwrite = ["owner"]\n'
        '[[rule]]\nname = "minutes"\nmatch = { kinds = [9] }\nread = ["owner", "author"]\n',
    )
    assert run(["policy", "diff", str(new), "--data", str(home)]) == 0
    page = capsys.readouterr().out
    assert page.startswith(
        "Would be refused\n"
        f"  1 event, {len(NOTE.raw)} bytes: owners write notes ({new}/z.toml:1)\n"
        "      restricted: not allowed by the rule 'owners write notes'\n"
        f"      as {NOTE.id}\n"
        "\n"
        "Would be hidden\n"
        f"  1 event, {len(SAID.raw)} bytes: minutes ({new}/z.toml:5)\n"
        "      from members of its group, admins of its group\n"
        f"      as {SAID.id}\n"
    )
    code, told = answer(capsys, "diff", str(home), str(new), "--data", str(home))
    assert code == 0
    assert [(each["effect"], each["rule"], each["line"]) for each in told["findings"]] == [
        ("refuse", "owners write notes", 1),
        ("hide", "minutes", 5),
    ]
    # The other way round what would be refused is taken, and what would be hidden is shown.
    code, told = answer(capsys, "diff", str(new), str(home), "--data", str(home))
    assert [(each["effect"], each["rule"]) for each in told["findings"]] == [("show", "minutes")]


def test_diff_of_the_same_policies_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "diff", str(home), "--data", str(home)]) == 0
    assert "the new policies make no difference to any" in capsys.readouterr().out


def test_diff_needs_a_store_and_policies_without_faults(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "diff", str(home), "--data", str(tmp_path)]) == 1
    assert run(["policy", "diff", str(tmp_path / "nowhere"), "--data", str(home)]) == 1
    bad = tmp_path / "bad"
    bad.mkdir()
    written(bad, a="x = 1")
    capsys.readouterr()
    assert run(["policy", "diff", str(bad), "--data", str(home)]) == 1
    assert f"{bad}/a.toml:1: unknown key" in capsys.readouterr().err
    assert run(["policy", "diff", "a", "b", "c", "--data", str(home)]) == 2


# -- log ------------------------------------------------------------------------------------------


def test_only_a_running_relay_is_followed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "log", "--data", str(home)]) == 0
    assert capsys.readouterr().err.startswith("nothing found; ")
    assert run(["policy", "log", "--data", str(home), "--follow"]) == 1
    assert f"no relay runs on {home}: `rookery serve" in capsys.readouterr().err
