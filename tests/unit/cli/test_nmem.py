"""`rookery nmem`, on a cache of this machine."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import run
from relay.client.nmem.apply import bind, bind_relay, put_all
from relay.client.nmem.cipher import cache_key
from relay.client.nmem.settings import find_nmem_settings
from relay.client.nmem.updates import begin_session
from relay.client.settings import FILE
from relay.memory.fence import attribution, fenced
from relay.memory.junk import Why
from relay.memory.nmem.records import Observation, Session, observation_draft, session_draft
from tests.cast import robot, rover
from tests.harness.fake_relay import FakeRelay, refusing
from tests.harness.super_journal import make_hot_journal
from tests.unit.client.nmem_cache import NOW, a_session, an_original, cache, sent, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from relay.client.nmem.database import Database

    Provenance = tuple[int, str, str]
    Nmem = Callable[..., Provenance]

NOWHERE = "ws://127.0.0.1:1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROOKERY_KEY", robot.nsec)
    monkeypatch.setenv("ROOKERY_RELAY", NOWHERE)
    monkeypatch.delenv("NMEM_KEY", raising=False)
    (tmp_path / "work/rook/.git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work/rook")
    return tmp_path


@pytest.fixture
def here(home: Path) -> Iterator[Database]:
    """Two sessions: one of three edits, one of a search for herons."""
    _, settings = find_nmem_settings(home)
    with cache(settings.db, cache_key({}, None, settings.data / "nmem.key")) as database:
        a_session(database)
        told(
            database,
            "PostToolUse",
            NOW + 50,
            "t",
            tool_name="Grep",
            tool_input={"pattern": "heron"},
        )
        yield database


@pytest.fixture
def nmem(home: Path, capsys: pytest.CaptureFixture[str]) -> Nmem:
    def nmem(*args: str) -> Provenance:
        code = run(["nmem", *args])
        return code, *capsys.readouterr()

    return nmem


def as_json(said: Provenance) -> Any:
    code, out, err = said
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_start_beyond_the_year_9999_is_printed_as_a_number(here: Database, nmem: Nmem) -> None:
    with here.transaction() as db:
        begin_session(db, Session("far", "rook", 2**63 - 1), None)
    code, out, _ = nmem("status")
    assert code == 0
    assert f"last session: far (rook, {2**63 - 1} UTC), started in the future" in out


def test_a_search_prints_an_array_or_ids(here: Database, nmem: Nmem) -> None:
    (found,) = as_json(nmem("search", "heron"))
    assert list(found) == [
        "id",
        "timestamp",
        "obs_type",
        "content_preview",
        "file_path",
        "session_id",
        "is_pinned",
        "event_id",
    ]
    (whole,) = as_json(nmem("search", "heron", "--full"))
    assert (whole["content"], whole["tool_name"], whole["project"]) == ("heron", "Grep", "rook")
    assert nmem("search", "unicorn", "--ids") == (0, "", "nothing found\n")
    code, out, err = nmem("search", "1.py", "--type", "nonsense")
    assert (code, out) == (0, "[]\n")
    assert "nothing has the type 'nonsense'; known are command, file_edit," in err
    code, out, _ = nmem("search", "py", "--ids", "--limit", "2")
    assert (code, len(out.splitlines())) == (0, 2)
    assert as_json(nmem("search", "py", "--ids", "--json", "--order-by", "blended")) == [3, 2, 1]
    assert as_json(nmem("search", "py", "--project", "none")) == []
    assert as_json(nmem("search", "py OR heron", "--type", "search")) == [found]
    assert as_json(nmem("search", " ")) == []


def test_a_search_on_a_terminal_is_a_table(
    here: Database, nmem: Nmem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, _ = nmem("search", "heron")
    assert code == 0
    assert "rook" in out
    assert "heron" in out
    assert "{" not in out
    assert "  heron\n" in nmem("search", "heron", "--full")[1]
    assert nmem("search", "unicorn") == (0, "", "nothing found\n")
    assert as_json(nmem("search", "heron", "--json"))


def test_a_search_on_a_terminal_names_the_author_of_what_another_key_recorded(
    here: Database, nmem: Nmem, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = Observation("u", NOW, "marker", "Stop", "kettle")
    events = [
        rover.sign(*session_draft(Session("u", "tea", NOW))),
        rover.sign(*observation_draft(marker, "tea")),
    ]
    bind(here, robot.pubkey)
    put_all(here, events, robot.pubkey, frozenset())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    by = f"— by {attribution(rover.pubkey)}"
    assert by in " ".join(nmem("search", "kettle")[1].split())
    assert by in nmem("search", "kettle", "--full")[1]
    assert "— by" not in nmem("search", "heron")[1] + nmem("search", "heron", "--full")[1]


@pytest.mark.parametrize(
    "args", [("x", "--full", "--ids"), ("x", "--limit", "0"), ("x", "--order-by", "age"), ()]
)
def test_an_invalid_search_is_a_usage_error(nmem: Nmem, args: tuple[str, ...]) -> None:
    code, out, err = nmem("search", *args)
    assert (code, out) == (2, "")
    assert "rookery nmem search" in err


@pytest.mark.parametrize("args", [("pin",), ("unpin",), ("purge", "--id"), ("purge", "--before")])
def test_a_number_that_no_database_has_is_a_usage_error(nmem: Nmem, args: tuple[str, ...]) -> None:
    code, out, err = nmem(*args, "9" * 20)
    assert (code, out) == (2, "")
    assert "99999" in err


def test_status_prints_the_file_and_queued_records(here: Database, nmem: Nmem) -> None:
    status = as_json(nmem("status", "--json"))
    assert status["file"] == str(here.path)
    assert status["bytes"] > 0
    assert [
        status[name] for name in ("sessions", "prompts", "observations", "pinned", "waiting")
    ] == [2, 1, 4, 0, 7]
    assert status["last_session"]["id"] == "t"
    code, out, _ = nmem("status")
    assert code == 0
    assert "observations: 4, 0 of them pinned\n" in out
    assert "last session: t (rook, " in out
    assert "waiting: 7 records for the relay\n" in out
    assert f"size: {status['bytes'] / 1000:.1f} kB\n" in out
    assert re.search(r"started [\d,]+ days ago, not ended$", out, re.MULTILINE)
    assert not re.search("True|False|None", out)


def test_status_of_an_empty_cache(nmem: Nmem) -> None:
    _, out, _ = nmem("status")
    assert "last session: none yet\n" in out
    assert "refused: 0 records by the relay\n" in out
    assert not re.search("True|False|None", out)


@pytest.mark.usefixtures("here")
def test_pin_prints_its_result(nmem: Nmem) -> None:
    assert nmem("pin", "2") == (0, "pinned 2\n", "")
    assert as_json(nmem("search", "1.py"))[0]["is_pinned"] is True
    assert nmem("unpin", "2") == (0, "unpinned 2\n", "")
    assert nmem("pin", "99") == (1, "", "observation 99 not found\n")
    assert nmem("unpin", "99", "--json") == (1, "", "observation 99 not found\n")
    assert as_json(nmem("pin", "2", "--json")) == {"id": 2, "pinned": True}


@pytest.mark.usefixtures("here")
def test_mark_prints_its_id_and_removes_secrets(nmem: Nmem) -> None:
    code, out, err = nmem("mark", "tea, password=hunter2")
    assert (code, out) == (0, "5\n")
    assert err == (
        f"kept out: {Why.SECRET.value}; --anyway writes it\n"
        "searches find it; `rookery nmem pin 5` shows it to new sessions\n"
    )
    (found,) = as_json(nmem("search", "tea", "--full"))
    assert (found["project"], found["content"]) == ("rook", "tea, [REDACTED]")
    assert as_json(nmem("mark", "cake", "--project", "other", "--json")) == {"id": 6}
    assert nmem("mark", "  ")[0] == 2


@pytest.mark.usefixtures("here")
def test_a_session_is_named_by_the_beginning_of_its_id(here: Database, nmem: Nmem) -> None:
    for id_ in ("1111-2222", "1111-3333", "1111"):
        told(here, "SessionStart", NOW, id_, source="startup")
    for begin, said in (
        ("1111-3", (0, '{"summarised":0}\n', "")),
        ("1111", (0, '{"summarised":0}\n', "")),
        ("1111-", (1, "", "several sessions begin with 1111-: 1111-2222, 1111-3333\n")),
        ("", (1, "", "session not found: \n")),
    ):
        code, out, err = nmem("maintain", "--session", begin, "--json")
        assert (code, out, said[2] in err) == (*said[:2], True)
    assert nmem("purge", "--session", "1111-2")[1].startswith("would delete 0 observations")
    told(here, "SessionStart", NOW, "1111-3\nrookery: deleted", source="resume")
    several = "several sessions begin with 1111-3: 1111-3�rookery��deleted, 1111-3333"
    assert nmem("purge", "--session", "1111-3")[::2] == (1, f"rookery: {several}\n")
    assert nmem("purge", "--session", "2")[::2] == (1, "rookery: session not found: 2\n")


@pytest.mark.usefixtures("here")
def test_context_of_the_project(nmem: Nmem) -> None:
    assert nmem("context", "--project", 'a "b"') == (
        0,
        'No context available for project "a "b"".\n',
        "",
    )
    assert nmem("pin", "4")[0] == 0
    code, out, _ = nmem("context")
    text = "# nmem context\n\n## rook\n- #4 search heron (pinned)"
    assert (code, out) == (0, fenced(text, "nmem", robot.pubkey) + "\n")
    assert as_json(nmem("context", "--json"))["project"] == "rook"


@pytest.mark.usefixtures("here")
def test_a_purge_deletes_only_if_confirmed(nmem: Nmem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.cli.nmem._PATIENCE_S", 0.1)
    assert nmem("purge", "--session", "s") == (
        0,
        "would delete 3 observations, 1 prompts, 1 sessions; add --confirm to delete\n",
        "",
    )
    assert as_json(nmem("status", "--json"))["observations"] == 4
    code, told, warned = nmem("purge", "--type", "search", "--confirm", "--json")
    assert (code, json.loads(told)) == (
        0,
        {
            "observations": 1,
            "prompts": 0,
            "sessions": 0,
            "summaries": 0,
            "tasks": 0,
            "deleted": True,
        },
    )
    assert warned.startswith("not deleted at the relay yet: ws://127.0.0.1:1 does not answer")
    assert nmem("purge", "--older-than", "1d", "--project", "rook", "--confirm")[1] == (
        "deleted 3 observations, 1 prompts, 2 sessions\n"
    )
    waiting = as_json(nmem("status", "--json"))["waiting"]
    assert waiting == 4, "the deletions: the relay may have what they name"


@pytest.mark.usefixtures("here")
def test_a_prompt_is_purged_by_the_id_that_searches_show(nmem: Nmem) -> None:
    ids = [row["id"] for row in as_json(nmem("search", "work", "--json"))]
    (prompt,) = [id_ for id_ in ids if id_ < 0]
    assert nmem("purge", "--id", str(prompt))[1].startswith(
        "would delete 0 observations, 1 prompts"
    )


async def test_a_purge_deletes_at_the_relay_at_once(
    here: Database, nmem: Nmem, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {event.id for event in sent(here)}
    async with FakeRelay() as relay:
        relay.challenges_at_once = True
        monkeypatch.setenv("ROOKERY_RELAY", relay.url)
        code, out, err = await asyncio.to_thread(nmem, "purge", "--project", "rook")
        assert (code, err) == (0, "")
        assert not relay.events
        code, out, err = await asyncio.to_thread(nmem, "purge", "--project", "rook", "--confirm")
        assert (code, out, err) == (0, "deleted 4 observations, 1 prompts, 2 sessions\n", "")
        assert {event.kind for event in relay.events} == {5}
        assert {id_ for event in relay.events for id_ in event.tag_values("e")} == there


@pytest.mark.parametrize("is_typed", [True, False])
async def test_what_waits_for_the_relay_of_client_toml_goes_to_another_only_if_a_person_says_so(
    here: Database, nmem: Nmem, home: Path, monkeypatch: pytest.MonkeyPatch, *, is_typed: bool
) -> None:
    bind_relay(here, NOWHERE, NOWHERE)
    (home / FILE).parent.mkdir(parents=True)
    (home / FILE).write_text(f'relay = "{NOWHERE}"\n')
    async with FakeRelay() as relay:
        relay.challenges_at_once = True
        monkeypatch.setenv("ROOKERY_RELAY", relay.url)
        typed = ("--relay", relay.url) if is_typed else ()
        code, _, err = await asyncio.to_thread(nmem, "sync", *typed)
        assert code == (0 if is_typed else 1)
        assert bool(relay.events) is is_typed
        assert is_typed or not relay.visits, "nor does it learn of the key"
    assert is_typed or f"belongs to {NOWHERE}, the relay of client.toml" in err


async def test_an_mcp_server_sends_nothing_to_another_relay_than_that_of_client_toml(
    here: Database, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither what waits, nor what a hook recorded before the cache had a relay."""
    (home / FILE).parent.mkdir(parents=True)
    (home / FILE).write_text(f'relay = "{NOWHERE}"\n')
    async with FakeRelay() as relay:
        monkeypatch.setenv("ROOKERY_RELAY", relay.url)
        assert await asyncio.to_thread(run, ["mcp", "--http", "0"]) == 1
        assert not relay.visits
    assert f"belongs to {NOWHERE}, the relay of client.toml" in capsys.readouterr().err


async def test_what_waits_for_a_relay_with_tls_is_not_sent_to_its_host_in_clear_text(
    here: Database, nmem: Nmem, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeRelay() as relay:
        own = relay.url.replace("ws:", "wss:")
        bind_relay(here, own, own)
        (home / FILE).parent.mkdir(parents=True)
        (home / FILE).write_text(f'relay = "{own}"\n')
        monkeypatch.setenv("ROOKERY_RELAY", relay.url)
        code, _, err = await asyncio.to_thread(nmem, "sync")
        assert (code, relay.visits) == (1, 0)
    assert f"belongs to {own}, the relay of client.toml" in err


def test_a_pending_deletion_is_reported(
    here: Database, nmem: Nmem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.cli.nmem._PATIENCE_S", 0.1)
    sent(here)
    code, out, err = nmem("purge", "--type", "search", "--confirm")
    assert (code, out) == (0, "deleted 1 observations, 0 prompts, 0 sessions\n")
    assert err.startswith(f"not deleted at the relay yet: {NOWHERE} does not answer")
    assert as_json(nmem("status", "--json"))["waiting"] == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "a purge needs at least one condition"),
        (("--before", "yesterday"), "'yesterday' is neither a date"),
        (("--older-than", "90 days"), "'90 days' is not an age"),
    ],
)
def test_a_purge_without_a_valid_condition_is_a_usage_error(
    nmem: Nmem, args: tuple[str, ...], words: str
) -> None:
    code, out, err = nmem("purge", *args, "--confirm")
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "before", ["1700000004", "2023-11-14T22:13:24", "2023-11-14T23:13:24+01:00"]
)
def test_a_time_is_a_number_or_a_date(nmem: Nmem, before: str) -> None:
    assert as_json(nmem("purge", "--before", before, "--json"))["observations"] == 2


@pytest.mark.proves("M-08")
def test_nmems_own_database_is_adopted_by_the_first_command(home: Path, nmem: Nmem) -> None:
    _, settings = find_nmem_settings(home)
    settings.db.parent.mkdir(parents=True)
    an_original(settings.db)
    code, out, err = nmem("search", "tea", "--json")
    (found,) = json.loads(out)
    assert (code, found["id"], found["is_pinned"]) == (0, 41, True)
    assert f"the file as it was: {settings.db}.original\n" in err
    assert "the file as it was" not in nmem("search", "tea")[2]  # said once
    assert as_json(nmem("search", "why", "--json"))[0]["id"] == -7
    assert json.loads(nmem("status", "--json")[1])["waiting"] == 4


@pytest.mark.usefixtures("here")
def test_maintain(nmem: Nmem) -> None:
    code, out, err = nmem("maintain", "--sweep")
    assert (code, out) == (0, "observations 0, prompts 0, sessions 0\n")
    assert "nothing of a session without a summary is ever swept" in err
    assert "nothing of a session without a summary is ever swept" in nmem("status")[1]
    assert as_json(nmem("status", "--json"))["summaries_by"] is None
    code, out, _ = nmem("maintain", "--summarise", "--json")
    assert (code, json.loads(out)) == (0, {"summarised": 0, "unsummarised": 1})
    assert nmem("maintain", "--rebuild-fts", "--json")[1] == '{"indexed":4}\n'
    assert nmem("maintain", "--session", "t", "--json")[1] == '{"summarised":0}\n'
    code, out, err = nmem("maintain", "--session", "x")
    assert (code, out) == (1, "")
    assert "session not found: x\n" in err
    assert as_json(nmem("search", "heron"))[0]["id"] == 4


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("verb", ["sync", "rebuild"])
def test_an_unreachable_relay_is_reported_in_one_line(
    nmem: Nmem, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.nmem.memory._RELAY_S", 0.1)
    code, out, err = nmem(verb)
    assert (code, out) == (1, "")
    assert err.startswith(f"rookery: {NOWHERE} does not answer")
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("here")
async def test_sync_sends_what_was_refused_before_the_agent_was_listed(
    nmem: Nmem, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeRelay() as relay:
        monkeypatch.setenv("ROOKERY_RELAY", relay.url)
        relay.on["EVENT"] = refusing("restricted: only agents may write memory")
        code, out, _ = await asyncio.to_thread(nmem, "sync", "--json")
        assert (code, json.loads(out)["refused"]) == (1, 7)
        relay.on["EVENT"] = relay.take
        code, out, _ = await asyncio.to_thread(nmem, "sync", "--json")
        assert (code, json.loads(out)["sent"]) == (0, 7)


def test_imports_are_counted_and_a_missing_file_is_named(
    here: Database, nmem: Nmem, tmp_path: Path
) -> None:
    code, _, err = nmem("import", str(tmp_path / "gone.db"))
    assert (code, err) == (1, f"rookery: there is no file {tmp_path}/gone.db\n")
    assert nmem("import", str(here.path))[1].startswith("sessions 0, prompts 0")


@pytest.mark.usefixtures("here")
def test_the_journal_of_an_imported_file_deletes_no_file(nmem: Nmem, tmp_path: Path) -> None:
    theirs, victim = tmp_path / "theirs.db", tmp_path / "robot.nsec"
    victim.write_text("mine")
    with closing(sqlite3.connect(theirs)) as file:
        file.execute("CREATE TABLE sessions (id)")
    make_hot_journal(theirs, victim)
    code, _, err = nmem("import", str(theirs))
    assert code == 1
    assert "theirs.db-journal names another file" in err
    assert victim.read_text() == "mine"


@pytest.mark.proves("M-09")
def test_an_unencrypted_cache_warns_once(nmem: Nmem, home: Path) -> None:
    _, settings = find_nmem_settings(home)
    with cache(settings.db) as database:
        a_session(database)
    code, out, err = nmem("search", "file")  # the first look at what hooks have made
    assert code == 0
    assert "is not encrypted" in err
    assert nmem("search", "file") == (0, out, ""), "it is said once"
    assert nmem("context")[2] == ""
    for _ in range(2):
        code, out, err = nmem("status")
        assert (code, err.count("is not encrypted")) == (0, 1)
        assert "encrypted: no\n" in out


@pytest.mark.proves("M-09")
def test_another_reason_warns_again(
    nmem: Nmem, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings = find_nmem_settings(home)
    with cache(settings.db) as database:
        a_session(database)
    reasons = {nmem("context")[2], nmem("context")[2]}
    monkeypatch.setattr("relay.client.nmem.database.cipher_module", lambda: None)
    reasons |= {nmem("context")[2], nmem("context")[2]}
    assert len(reasons) == 3, reasons
    assert "" in reasons


def test_invalid_settings_and_keys_are_reported(
    nmem: Nmem, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROOKERY_KEY")
    assert as_json(nmem("search", "tea")) == []  # needs no key
    code, _, err = nmem("mark", "tea")
    assert code == 1
    assert "no key to sign with" in err
    (home / FILE).parent.mkdir(parents=True)
    (home / FILE).write_text("[nmem]\ncolour = 5\n")
    code, _, err = nmem("status")
    assert code == 1
    assert "[nmem] colour: unknown key" in err
