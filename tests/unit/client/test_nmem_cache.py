"""The cache of nmem: its file, what it is made from, what leaves it."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import shutil
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from relay.client.nmem import apply, cipher, database, queries
from relay.client.nmem.adoption import Adoption
from relay.client.nmem.apply import bind, drop_batch, drop_deleted, put_all
from relay.client.nmem.cipher import CacheKey, cache_key
from relay.client.nmem.database import MUST_ERASE, CacheUnusable, Database, lock_path, statements
from relay.client.nmem.queries import Found, Order, Scope, _found, context_of, search, timeline
from relay.client.nmem.rebuild import rebuild
from relay.client.nmem.removal import Purge, Purged, Removed, purge, sweep
from relay.client.nmem.sync import record_answers, waiting_after
from relay.client.nmem.updates import (
    about,
    add_task,
    event_id_of,
    ignore_events,
    newest_prompt,
    record_observation,
    record_pin,
    record_prompt,
    set_about,
    summarise,
)
from relay.errors import UserError
from relay.memory.nmem.records import (
    Observation,
    Pin,
    Prompt,
    Session,
    Source,
    hash_in,
    observation_draft,
    pin_draft,
    prompt_draft,
    session_draft,
)
from relay.memory.nmem.summary import EMPTY_SESSION, Summary
from relay.memory.secrets import SecretFilter
from relay.nostr import kinds
from relay.nostr.nip09 import named_by
from tests.cast import alice, owner, robot, rover
from tests.unit.client.nmem_cache import (
    DAY,
    NOW,
    a_session,
    an_original,
    cache,
    fetch_all,
    query,
    rows,
    sent,
    summary_of,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from relay.memory.draft import Draft
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

NOBODY: frozenset[str] = frozenset()
ANYWHERE = Scope()
KEY = CacheKey("5a" * 32)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Database]:
    with cache(tmp_path / "nmem.db") as made:
        yield made


@pytest.fixture
def without_cipher(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where the extra is not installed."""
    for module in (cipher, database):
        monkeypatch.setattr(module, "cipher_module", lambda: None)


# -- the file -------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.proves("M-09")
def test_with_a_key_the_file_is_encrypted_and_private(tmp_path: Path) -> None:
    path = tmp_path / "nmem.db"
    with cache(path, KEY) as made:
        a_session(made, "plum")
        assert (made.is_encrypted, made.warning) == (True, "")
    assert mode(path) == 0o600
    assert b"plum" not in path.read_bytes()
    assert not path.read_bytes().startswith(b"SQLite format 3")
    with cache(path, KEY) as again:
        assert len(rows(again, "observations")) == 3


@pytest.mark.proves("M-09")
@pytest.mark.parametrize("other", [CacheKey("a5" * 32), CacheKey("5a 5a"), None])
def test_without_the_key_an_encrypted_file_is_not_opened_nor_changed(
    tmp_path: Path, other: CacheKey | None, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nmem.db"
    with cache(path, KEY) as made:
        a_session(made)
    before = path.read_bytes()
    with pytest.raises(CacheUnusable, match="NMEM_KEY"):
        Database(path, other)
    assert path.read_bytes() == before
    assert capfd.readouterr() == ("", "")  # SQLCipher has words of its own for it


@pytest.mark.parametrize("adopts", [True, False], ids=["of nmem itself", "a cache"])
def test_a_file_that_other_users_could_read_is_made_private(
    tmp_path: Path, *, adopts: bool
) -> None:
    """An adopted database kept its mode, as did its log: others read what was recorded."""
    path = tmp_path / "nmem.db"
    if adopts:
        an_original(path)
    else:
        Database(path).close()
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE more (n)")  # so that there is a log
        with closing(Database(path, adopt=ADOPT)) as here:
            a_session(here, "s-2")
            assert {mode(file) for file in tmp_path.iterdir()} == {0o600}


@pytest.mark.slow
@pytest.mark.proves("M-09")
def test_a_passphrase_encrypts_too(tmp_path: Path) -> None:
    phrase = CacheKey("it's a phrase")
    with cache(tmp_path / "nmem.db", phrase) as made:
        a_session(made)
        assert made.is_encrypted
    with cache(tmp_path / "nmem.db", phrase) as again:
        assert len(rows(again, "sessions")) == 1


@pytest.mark.proves("M-09")
@pytest.mark.usefixtures("without_cipher")
def test_without_sqlcipher_the_file_is_plain_with_a_warning(tmp_path: Path) -> None:
    with cache(tmp_path / "nmem.db", KEY) as made:
        assert not made.is_encrypted
        assert "is not encrypted" in made.warning
    assert mode(tmp_path / "nmem.db") == 0o600


@pytest.mark.proves("M-09")
def test_an_encrypted_file_never_becomes_a_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nmem.db"
    with cache(path, KEY) as made:
        a_session(made)
    before = path.read_bytes()
    monkeypatch.setattr(database, "cipher_module", lambda: None)
    with pytest.raises(CacheUnusable, match=r"-m pip install .*\[sqlcipher\]"):
        Database(path, KEY)
    assert path.read_bytes() == before


@pytest.mark.proves("M-09")
def test_a_rebuild_encrypts_a_plain_file(tmp_path: Path) -> None:
    path = tmp_path / "nmem.db"
    with cache(path) as plain:
        a_session(plain)
        events = sent(plain)
    with cache(path, KEY) as made:
        assert not made.is_encrypted
        assert "rookery nmem rebuild" in made.warning
        before = fetch_all(made)
        rebuild(made, KEY, events, robot.pubkey, NOBODY)
        assert (made.is_encrypted, made.warning) == (True, "")
        assert fetch_all(made) == before


@pytest.mark.proves("M-09")
def test_the_key_is_that_of_the_environment_of_a_file_or_made(tmp_path: Path) -> None:
    own, named = tmp_path / "data/nmem.key", tmp_path / "named"
    named.write_text("from the file\n")
    assert cache_key({"NMEM_KEY": "from outside"}, named, own) == CacheKey("from outside")
    assert cache_key({}, named, own) == CacheKey("from the file")
    assert not own.exists()
    made = cache_key({}, None, own)
    assert made is not None
    assert len(bytes.fromhex(made.text)) == 32
    assert mode(own) == 0o600
    assert cache_key({}, None, own) == made
    assert made.text not in repr(made)


def test_concurrent_first_users_share_one_key(tmp_path: Path) -> None:
    for number in range(20):
        own = tmp_path / f"{number}/nmem.key"
        with ThreadPoolExecutor(8) as threads:
            made = set(threads.map(lambda _: cache_key({}, None, own), range(8)))  # noqa: B023
        assert len(made) == 1
        assert list(own.parent.iterdir()) == [own]


def test_a_missing_key_file_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the key"):
        cache_key({}, tmp_path / "gone", tmp_path / "own")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        cache_key({}, tmp_path / "empty", tmp_path / "own")


@pytest.mark.usefixtures("without_cipher")
def test_no_key_is_made_that_nothing_can_use(tmp_path: Path) -> None:
    assert cache_key({}, None, tmp_path / "own") is None
    assert not (tmp_path / "own").exists()


def made_by_another(path: Path, version: int) -> None:
    other = sqlite3.connect(path)
    with other:
        for statement in statements():
            if "_rk_" not in statement:
                other.execute(statement)
        other.execute(f"PRAGMA user_version = {version}")
    other.close()


@pytest.mark.proves("M-08", "M-12")
@pytest.mark.parametrize("version", [2, 3, 12])
def test_a_file_of_another_program_or_version_is_named_and_left_alone(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "nmem.db"
    made_by_another(path, version)
    with pytest.raises(CacheUnusable, match=rf"version {version}.*rookery nmem import"):
        Database(path)
    other = sqlite3.connect(path)
    assert other.execute("PRAGMA user_version").fetchone() == (version,)
    other.close()


ADOPT = Adoption(SecretFilter()).adopt


@pytest.mark.proves("M-08", "M-12")
@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_a_database_of_nmem_itself_becomes_the_cache_and_its_copy_is_kept(
    tmp_path: Path, key: CacheKey | None
) -> None:
    path, copy = tmp_path / "nmem.db", tmp_path / "nmem.db.original"
    an_original(path, key)
    before = path.read_bytes()
    with closing(Database(path, key, adopt=ADOPT)) as here:
        assert here.is_encrypted is (key is not None)
        assert rows(here, "prompts")[0] == (7, "s", 110, "user", "why, [REDACTED]")
        found = [(row[0], row[2], row[8], row[10]) for row in rows(here, "observations")]
        assert found == [(41, 7, "make tea", 1), (45, None, "/w/a", 0)]
        with here.reading() as db:
            assert [
                each.id for each in search(db, "tea", ANYWHERE, Order.RELEVANCE, NOW, 9, 0)
            ] == [41]
            assert search(db, "hunter2", ANYWHERE, Order.RELEVANCE, NOW, 9, 0) == []
        assert query(here, "SELECT line_number FROM _cursor") == [(12,)]
        ((said,),) = query(here, "SELECT value FROM _rk_about WHERE name = 'adopted'")
        assert said == (
            f"{path} was nmem's own database: 1 sessions, 1 prompts and 2 observations will be sent"
            f" to the relay, 1 rows cannot, and are left out; the file as it was: {copy}"
        )
        # It goes on as a cache, and what it held goes to the relay: pins by the key's event ids.
        told(here, "PostToolUse", NOW, "s", tool_name="Grep", tool_input={"pattern": "kettle"})
        assert (
            len(query(here, "SELECT * FROM observations_fts WHERE observations_fts = 'kettle'"))
            == 1
        )
        bind(here, robot.pubkey)
        events = {event.d: event for event in sent(here)}
    assert (mode(copy), copy.read_bytes()) == (0o600, before)
    pinned = next(event for event in events.values() if "make tea" in event.content)
    assert f"nmem:pin:{pinned.id}" in events
    assert sorted(d.split(":")[1] for d in events) == [
        "obs",
        "obs",
        "obs",
        "pin",
        "prompt",
        "session",
    ]
    assert b"hunter2" not in path.read_bytes()
    with closing(Database(path, key, adopt=ADOPT)):
        assert not (tmp_path / "nmem.db.original-1").exists()


def test_of_an_adopted_database_nothing_is_left_that_no_purge_deletes(tmp_path: Path) -> None:
    """Rows that are the same as another, or no record, were found by searches for ever."""
    path = tmp_path / "nmem.db"
    an_original(path)
    with closing(sqlite3.connect(path)) as theirs:
        theirs.executescript(
            """
            INSERT INTO prompts VALUES (17, 's', 110, 'user', 'why, password=hunter2');
            INSERT INTO prompts VALUES (18, 'gone', 110, 'user', 'why, password=hunter2');
            INSERT INTO observations VALUES (51, 's', 17, 120, 'command', 'PostToolUse', 'Bash',
                NULL, 'make tea', '{"failed": true}', 0);
            INSERT INTO observations VALUES (52, 'gone', NULL, 120, 'command', 'PostToolUse',
                'Bash', NULL, 'token=hunter2', NULL, 1);
            INSERT INTO observations VALUES (53, 's', 17, 140, 'command', 'PostToolUse', 'Bash',
                NULL, 'second', NULL, 0);
            INSERT INTO observations VALUES (54, 's', 8, 150, 'command', 'PostToolUse', 'Bash',
                NULL, 'third', NULL, 0);
            """
        )
    with closing(Database(path, adopt=ADOPT)) as here:
        found = query(here, "SELECT id, prompt_id FROM observations ORDER BY id")
        assert found == [(41, 7), (45, None), (53, 7), (54, None)]
        assert [row[0] for row in rows(here, "prompts")] == [7]
        bind(here, robot.pubkey)
        purged(here, Purge(project="rook"))
        for table in ("sessions", "prompts", "observations"):
            assert rows(here, table) == []
        with here.reading() as db:
            assert search(db, "tea OR why OR token", ANYWHERE, Order.RELEVANCE, NOW, 9, 0) == []
    assert b"hunter2" not in path.read_bytes()


@pytest.mark.proves("M-08")
@pytest.mark.parametrize(
    "changed",
    [
        "PRAGMA user_version = 3",
        "ALTER TABLE sessions ADD COLUMN mood TEXT",
        "DROP TABLE _cursor",
    ],
)
def test_another_database_is_not_adopted(tmp_path: Path, changed: str) -> None:
    path = tmp_path / "nmem.db"
    an_original(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(changed)
    before = path.read_bytes()
    with pytest.raises(CacheUnusable, match="rookery nmem import"):
        Database(path, adopt=ADOPT)
    assert path.read_bytes() == before
    assert not (tmp_path / "nmem.db.original").exists()


@pytest.mark.parametrize("failing", ["import_db.rebuild_index", "adoption.copyfileobj"])
def test_an_adoption_that_fails_leaves_the_database_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "nmem.db"
    an_original(path)

    def fail(*_: object) -> None:
        raise OSError("full")

    with monkeypatch.context() as patched:
        patched.setattr(f"relay.client.nmem.{failing}", fail)
        with pytest.raises(OSError, match="full"):
            Database(path, adopt=ADOPT)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT content FROM prompts WHERE id = 7").fetchone() == (
            "why, password=hunter2",
        )
    assert not list(tmp_path.glob("*original*"))
    with closing(Database(path, adopt=ADOPT)) as here:
        assert len(rows(here, "observations")) == 2


def test_an_adoption_that_is_tried_again_opens_the_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nmem.db"
    an_original(path)

    def fail(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr("relay.client.nmem.import_db.rebuild_index", fail)
    opened = []
    for _ in range(4):
        with pytest.raises(OSError, match="full"):
            Database(path, adopt=ADOPT)
        opened.append(len(os.listdir("/dev/fd")))
    assert opened[-1] <= opened[0]
    monkeypatch.undo()
    whole = path.read_bytes()
    with closing(Database(path, adopt=ADOPT)) as here:
        assert len(rows(here, "observations")) == 2
    (copy,) = tmp_path.glob("nmem.db.original")
    assert copy.read_bytes() == whole


@pytest.mark.proves("M-08")
def test_a_cache_of_a_newer_version_of_ours_is_named_and_left_alone(here: Database) -> None:
    a_session(here)
    query(here, "PRAGMA user_version = 3")
    with pytest.raises(CacheUnusable, match=r"version 3, expected 2\): set another file"):
        Database(here.path)


def test_an_invalid_file_is_reported_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "nmem.db"
    path.write_bytes(b"tea and biscuits" * 100)
    for key in (None, KEY):
        with pytest.raises(CacheUnusable):
            Database(path, key)
    assert path.read_bytes() == b"tea and biscuits" * 100


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """In a folder of another user. It made the file that the link named."""
    lock_path(tmp_path / "nmem.db").symlink_to(tmp_path / "nologin")
    with pytest.raises(OSError, match=r"nmem\.db\.lock"):
        Database(tmp_path / "nmem.db")
    assert not (tmp_path / "nologin").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said_with_what_to_do(
    here: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As NFS without a lock daemon. It was a traceback."""

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    def read() -> None:
        with here.reading():
            pass

    def replace() -> None:
        with here.replacing():
            pass

    monkeypatch.setattr(fcntl, "flock", refused)
    for attempt in (
        lambda: Database(tmp_path / "other.db"),
        read,
        replace,
        lambda: rebuild(here, None, [], robot.pubkey, NOBODY),
    ):
        with pytest.raises(CacheUnusable, match=r"cannot be locked: .*; put the folder on a local"):
            attempt()


def test_a_deleted_cache_is_created_again(here: Database) -> None:
    a_session(here)
    here.path.unlink()
    a_session(here, "t")
    assert [row[0] for row in rows(here, "sessions")] == ["t"]


def test_many_programs_record_at_once_and_nothing_is_lost(here: Database) -> None:
    others = [Database(here.path) for _ in range(4)]

    def record(number: int) -> None:
        a_session(others[number % 4], f"s{number}", edits=5)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(record, range(12)))
    for other in others:
        other.close()
    assert [len(rows(here, table)) for table in ("sessions", "prompts", "observations")] == [
        12,
        12,
        60,
    ]


# -- what a hook records --------------------------------------------------------------------------


@pytest.mark.proves("M-03", "M-16")
def test_a_repeated_hook_is_recorded_once_under_the_newest_prompt(here: Database) -> None:
    told(here, "SessionStart")
    told(here, "UserPromptSubmit", NOW + 1, prompt="first")
    told(here, "UserPromptSubmit", NOW + 2, prompt="second")
    for _ in range(2):
        told(here, "PostToolUse", NOW + 3, tool_name="Read", tool_input={"file_path": "/w/a"})
    assert query(here, "SELECT prompt_id, content FROM observations") == [(2, "/w/a")]
    assert len(sent(here)) == 4


def test_a_hook_that_is_recorded_later_follows_the_prompt_of_its_time(here: Database) -> None:
    told(here, "UserPromptSubmit", NOW + 1, prompt="first")
    told(here, "PostToolUse", NOW + 3, tool_name="Read", tool_input={"file_path": "/w/a"})
    told(here, "UserPromptSubmit", NOW + 5, prompt="second")
    for file in ("/w/a", "/w/b"):
        told(here, "PostToolUse", NOW + 3, tool_name="Read", tool_input={"file_path": file})
    found = query(here, "SELECT prompt_id, content FROM observations")
    assert found == [(1, "/w/a"), (1, "/w/b")]


@pytest.mark.parametrize("first", [alice, robot])
def test_ones_own_record_stays_ones_own_when_another_key_copies_it(
    here: Database, first: SecretKey
) -> None:
    """Copied with its text and `d`, for another machine to take it for the other's."""
    draft = observation_draft(Observation("s", NOW, "marker", "Stop", "mine"), "rook", "den")
    events = sorted(
        (key.sign(draft.kind, draft.tags, draft.content, NOW) for key in (alice, robot)),
        key=lambda event: event.pubkey != first.pubkey,
    )
    for event in events:
        put_all(here, [event], robot.pubkey, NOBODY)
    ((_, _, author, event_id, _),) = rows(here, "_rk_observations")
    own = next(event for event in events if event.pubkey == robot.pubkey)
    assert (author, event_id) == ("", own.id)
    assert drop_deleted(here, [(event.id, alice.pubkey) for event in events]) == 0


def observation_of(who: SecretKey, text: str) -> Event:
    draft = observation_draft(Observation("s", NOW, "thought", "Stop", text), "rook", "den")
    return who.sign(draft.kind, draft.tags, draft.content, NOW)


def test_a_full_cache_takes_in_what_is_ones_own(
    here: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apply, "_FULL", 0)
    assert put_all(
        here, [observation_of(who, "mine") for who in (alice, robot)], robot.pubkey, NOBODY
    )
    assert [author for _, _, author, *_ in rows(here, "_rk_observations")] == [""]
    assert rows(here, "_rk_passed_over") == []
    assert "does not take in 1 records of other keys" in caplog.text


def test_a_rebuild_takes_in_no_more_of_others_than_a_cache_may_have(
    here: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It puts all records in one transaction."""
    monkeypatch.setattr(apply, "_FULL", 100)
    monkeypatch.setattr(apply, "_BATCH", 10)
    events = [observation_of(alice, f"{number} ".ljust(4000, "x")) for number in range(300)]
    assert 50 < rebuild(here, None, events, robot.pubkey, NOBODY) < 150


@pytest.mark.proves("M-14")
def test_a_resumed_session_keeps_its_row(here: Database) -> None:
    a_session(here)
    told(here, "SessionStart", NOW + 99, source="resume")
    ((_, project, started, ended, _, _),) = rows(here, "sessions")
    assert (project, started, ended) == ("rook", NOW, NOW + 5)
    assert query(here, "SELECT obs_type, content FROM observations ORDER BY id DESC LIMIT 1") == [
        ("session_resume", "resume")
    ]


@pytest.mark.proves("M-04", "M-06", "M-20")
@pytest.mark.parametrize(("edits", "is_empty"), [(0, True), (2, True), (3, False)])
def test_a_session_with_little_in_it_ends_as_an_empty_one(
    here: Database, edits: int, *, is_empty: bool
) -> None:
    a_session(here, edits=edits)
    ((*_, signature, summary),) = rows(here, "sessions")
    assert signature == (f'[["file_edit",{edits}]]' if edits else "[]")
    assert summary_of(summary) == (EMPTY_SESSION.fields() if is_empty else None)


@pytest.mark.proves("M-14")
def test_a_hook_without_a_beginning_begins_its_session(here: Database) -> None:
    told(here, "PostToolUse", tool_name="Read", tool_input={"file_path": "/w/a"})
    assert [row[:3] for row in rows(here, "sessions")] == [("s", "rook", NOW)]


THOUGHT = '{"type":"assistant","message":{"content":[{"type":"thinking","thinking":"%s"}]}}\n'


@pytest.mark.proves("M-19")
def test_a_transcript_is_read_on_from_where_it_ended(here: Database, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"

    def scanned() -> tuple[list[str], int]:
        at = NOW + len(rows(here, "observations"))  # a thought without a time is of now
        told(here, "PostToolUse", at, tool_name="Read", transcript_path=str(path))
        said = query(here, "SELECT content FROM prompts WHERE source = 'agent' ORDER BY id")
        return [text for (text,) in said], query(here, "SELECT line_number FROM _cursor")[0][0]

    path.write_text("not JSON\n" + THOUGHT % "one" + THOUGHT % "two" + '{"type":"assis')
    assert scanned() == (["one", "two"], 3)
    path.write_text(path.read_text()[:-14] + THOUGHT % "one" + THOUGHT % "three")
    assert scanned() == (["one", "two", "three"], 5)
    path.write_text(THOUGHT % "anew")  # rewritten under us
    assert scanned() == (["one", "two", "three", "anew"], 1)


@pytest.mark.parametrize("how", ["purged", "deleted by another machine"])
def test_thoughts_that_were_deleted_are_not_read_again_when_the_session_goes_on(
    here: Database, tmp_path: Path, how: str
) -> None:
    bind(here, robot.pubkey)
    transcript = tmp_path / "t.jsonl"
    transcript.write_text(THOUGHT % "the launch is on Monday")
    told(here, "Stop", NOW, transcript_path=str(transcript))
    assert len(rows(here, "prompts")) == 1
    events = sent(here)
    if how == "purged":
        purged(here, Purge(session="s"), NOW + 9)
    else:
        drop_deleted(here, [(event.id, robot.pubkey) for event in events])
    with transcript.open("a") as more:
        more.write(THOUGHT % "the kettle is fine")
    told(here, "Stop", NOW + 10, transcript_path=str(transcript))
    assert [row[4] for row in rows(here, "prompts")] == ["the kettle is fine"]


@pytest.mark.parametrize("how", ["purged", "deleted by another machine", "before a rebuild"])
def test_thoughts_that_were_deleted_are_not_read_again_from_a_fork_or_from_the_start(
    here: Database, tmp_path: Path, how: str
) -> None:
    def thought(text: str, second: int, session: str = "s") -> str:
        line = json.loads(THOUGHT % text)
        stamp = f"2026-10-04T20:00:{second:02}.000Z"
        return json.dumps({**line, "sessionId": session, "timestamp": stamp}) + "\n"

    bind(here, robot.pubkey)
    transcript, fork = tmp_path / "s.jsonl", tmp_path / "fork.jsonl"
    transcript.write_text(thought("the launch is on Monday", 1) + thought("I look", 2))
    told(here, "Stop", NOW, transcript_path=str(transcript))
    assert len(rows(here, "prompts")) == 2
    events = sent(here)
    if how == "deleted by another machine":
        drop_deleted(here, [(event.id, robot.pubkey) for event in events])
    else:
        purged(here, Purge(session="s"), NOW + 9)
    if how == "before a rebuild":
        rebuild(here, None, [], robot.pubkey, NOBODY)
    transcript.write_text(thought("the launch is on Monday", 1))
    told(here, "Stop", NOW + 10, transcript_path=str(transcript))
    fork.write_text(thought("the launch is on Monday", 1, "fork") + thought("I look", 3, "fork"))
    told(here, "Stop", NOW + 11, "fork", transcript_path=str(fork))
    # The same words of another time are another thought.
    assert [(row[1], row[4]) for row in rows(here, "prompts")] == [("fork", "I look")]
    assert not any(b"launch" in event.raw for event in sent(here))


@pytest.mark.proves("M-19")
def test_a_missing_transcript_is_ignored(here: Database, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits until somebody writes
    for path in (tmp_path / "gone", tmp_path, tmp_path / "pipe", "\0"):
        told(here, "Stop", transcript_path=str(path))
    assert rows(here, "_cursor") == []


# -- made anew ------------------------------------------------------------------------------------


def told_to_a_relay(here: Database) -> list[Event]:
    """Two sessions with all that can be in them; as events, in the order of their writing."""
    a_session(here, "s")
    told(
        here,
        "PostToolUseFailure",
        NOW + 60,
        "s",
        tool_name="Bash",
        tool_input={"command": "make"},
        tool_response="password = x, 2 failed",
    )
    a_session(here, "t", NOW + 100, edits=1)
    with here.transaction() as db:
        summarise(db, "s", Summary("dedupe", ("first wins",), notes={"é": [1.5]}), None)
    events = sent(here)
    with here.transaction() as db:
        target = db.execute(
            "SELECT event_id FROM _rk_observations WHERE observation_id = 2"
        ).fetchone()[0]
        record_pin(db, 2, target, NOW + 200, None, is_pinned=True)
    return events + sent(here)


@pytest.mark.proves("M-10")
def test_a_rebuilt_cache_is_the_one_that_wrote_its_records(here: Database, tmp_path: Path) -> None:
    events = told_to_a_relay(here)
    before = fetch_all(here)
    assert [row[-1] for row in before["observations"]] == [0, 1, 0, 0, 0]
    with cache(tmp_path / "other.db") as other:
        rebuild(other, None, events, robot.pubkey, NOBODY)
        assert fetch_all(other) == before
        rebuild(other, None, events[::-1], robot.pubkey, NOBODY)
        assert fetch_all(other) == before
    rebuild(here, None, events, robot.pubkey, NOBODY)
    assert fetch_all(here) == before


@pytest.mark.proves("M-10")
def test_a_rebuilt_cache_has_the_tables_indices_and_triggers_of_a_new_one(
    here: Database, tmp_path: Path
) -> None:
    asked = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY 2"
    with cache(tmp_path / "new.db") as new:
        wanted = query(new, asked)
    rebuild(here, None, told_to_a_relay(here), robot.pubkey, NOBODY)
    assert query(here, asked) == wanted
    told(here, "PostToolUse", tool_name="Grep", tool_input={"pattern": "heron"})
    with here.reading() as db:
        (found,) = search(db, "heron", Scope(), Order.RELEVANCE, NOW, 9, 0)
        assert found.content == "heron"


@pytest.mark.proves("M-10", "M-11")
def test_unsent_records_survive_a_rebuild(here: Database) -> None:
    events = told_to_a_relay(here)
    a_session(here, "later", NOW + 500)
    rebuild(here, None, events, robot.pubkey, NOBODY)
    assert len(rows(here, "sessions")) == 3
    linked = "SELECT session_id FROM observations WHERE prompt_id IS NOT NULL ORDER BY id DESC"
    assert query(here, f"{linked} LIMIT 3") == [("later",)] * 3
    assert len(sent(here)) == 5


def pinned(here: Database, number: int, *, is_pinned: bool = True) -> None:
    """With its record still to be sent."""
    with here.transaction() as db:
        target = event_id_of(db, number, robot)
        record_pin(db, number, target, NOW + 9, None, is_pinned=is_pinned)


@pytest.mark.proves("M-11")
def test_an_unsent_record_that_is_pinned_survives_a_rebuild(here: Database) -> None:
    bind(here, robot.pubkey)
    a_session(here)
    pinned(here, 2)
    rebuild(here, None, [], robot.pubkey, NOBODY)
    content = "SELECT content, is_pinned FROM observations ORDER BY content"
    assert query(here, content) == [("/w/s/0.py", 0), ("/w/s/1.py", 1), ("/w/s/2.py", 0)]
    assert purged(here, Purge(search="1.py"), NOW + 99).observations == 1
    assert not any("/w/s/1.py" in event.content for event in sent(here))


def test_another_program_continues_with_the_rebuilt_file(here: Database) -> None:
    other = Database(here.path)
    a_session(here)
    rebuild(here, None, sent(here), robot.pubkey, NOBODY)
    a_session(other, "t", NOW + 50)
    other.close()
    assert [row[0] for row in rows(here, "sessions")] == ["s", "t"]
    assert not [name for name in os.listdir(here.path.parent) if "new" in name]


def test_a_rebuild_that_cannot_replace_the_file_leaves_all_that_waits(
    here: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited was in the log alone, which was removed first."""
    a_session(here)
    waiting = len(rows(here, "_rk_outbox"))
    in_file: list[int] = []

    def replace(_: Path, to: Path) -> Path:
        copied = shutil.copy(to, to.with_name("copy.db"))
        with closing(sqlite3.connect(copied)) as copy:
            in_file.extend(*copy.execute("SELECT count(*) FROM _rk_outbox"))
        raise OSError(errno.EACCES, "not allowed")

    with cache(here.path) as other, monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", replace)
        with pytest.raises(OSError, match="not allowed"):
            rebuild(here, None, [], robot.pubkey, NOBODY)
        assert in_file == [waiting]
        told(other, "UserPromptSubmit", NOW + 50, prompt="and now")
        assert len(rows(here, "_rk_outbox")) == waiting + 1


def test_a_rebuild_waits_for_no_program_that_reads_for_long(
    here: Database,
) -> None:
    """Such as one of nmem itself, which does not know the lock."""
    with here.reading() as db:
        db.execute("PRAGMA busy_timeout = 1")
    a_session(here)
    with closing(sqlite3.connect(here.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM sessions").fetchall()
        told(here, "UserPromptSubmit", NOW + 50, prompt="and now")
        with pytest.raises(OSError, match="another program reads"):
            rebuild(here, None, [], robot.pubkey, NOBODY)
    assert len(rows(here, "prompts")) == 2


@pytest.mark.parametrize("how", ["purged", "purged and sent", "deleted by another machine"])
def test_what_leaves_the_cache_during_a_rebuild_does_not_come_back(
    here: Database, how: str
) -> None:
    """It was told at the next start of a session."""
    bind(here, robot.pubkey)
    a_session(here, "s")
    a_session(here, "t", NOW + 50)
    events = sent(here)

    def progress(_: int) -> None:
        if how == "deleted by another machine":
            drop_deleted(here, [(e.id, robot.pubkey) for e in events if e.tag("s") == "s"])
            return
        purged(here, Purge(session="s"), NOW + 9)
        if how == "purged and sent":
            sent(here)

    assert rebuild(here, None, events, robot.pubkey, NOBODY, progress=progress) == 5
    assert [row[0] for row in rows(here, "sessions")] == ["t"]
    assert [len(rows(here, table)) for table in ("prompts", "observations")] == [1, 3]


def test_what_is_recorded_during_a_rebuild_stays(here: Database) -> None:
    bind(here, robot.pubkey)
    a_session(here, "s")
    events = sent(here)

    def progress(_: int) -> None:
        told(here, "Stop", NOW + 60)

    rebuild(here, None, events, robot.pubkey, NOBODY, progress=progress)
    a_session(here, "t", NOW + 50)
    assert [row[3] for row in rows(here, "sessions")] == [NOW + 60, NOW + 55]
    assert len(rows(here, "observations")) == 6


@pytest.mark.proves("M-10")
def test_the_order_and_the_number_of_tellings_do_not_matter(here: Database, tmp_path: Path) -> None:
    events = told_to_a_relay(here)
    with cache(tmp_path / "other.db") as other:
        for event in events[::-1]:
            put_all(other, [event], rover.pubkey, NOBODY)
        put_all(other, events, rover.pubkey, NOBODY)
        for table in ("sessions", "prompts"):
            assert len(rows(other, table)) == len(rows(here, table))
        content = (
            "SELECT o.content, o.is_pinned, p.content FROM observations o"
            " LEFT JOIN prompts p ON p.id = o.prompt_id ORDER BY o.timestamp"
        )
        assert query(other, content) == query(here, content)
        assert rows(other, "_rk_unlinked") == []


def test_a_session_without_its_record_is_the_same_in_whatever_order_its_records_come(
    here: Database, tmp_path: Path
) -> None:
    a_session(here)
    told(here, "UserPromptSubmit", NOW + 100, prompt="the last one")
    events = [event for event in sent(here) if event.kind == kinds.APP_RECORD]
    with cache(tmp_path / "at_once.db") as whole, cache(tmp_path / "singly.db") as other:
        for machine in (whole, other):
            bind(machine, robot.pubkey)
        put_all(whole, events, robot.pubkey, NOBODY)
        for event in events[::-1]:
            put_all(other, [event], robot.pubkey, NOBODY)
        assert rows(other, "sessions") == rows(whole, "sessions")
        with other.reading() as db:
            newest = newest_prompt(db, "s", NOW + 100)
        (d,) = [event.d for event in events if "the last one" in event.content]
        assert newest == hash_in(d)


def test_a_dropped_observation_waits_for_no_prompt(here: Database) -> None:
    a_session(here)
    (edit, *_) = [event for event in sent(here, rover) if event.d.startswith("nmem:obs:")]
    with cache(here.path.with_name("other.db")) as other:
        put_all(other, [edit], robot.pubkey, NOBODY)
        assert len(rows(other, "_rk_unlinked")) == 1
        drop_deleted(other, [(edit.id, rover.pubkey)])
        assert rows(other, "_rk_unlinked") == []


def test_a_cache_of_an_earlier_version_gets_the_tables_that_it_lacks(
    here: Database, tmp_path: Path
) -> None:
    with cache(tmp_path / "new.db") as new:
        tables = query(new, "SELECT name FROM sqlite_master ORDER BY name")
    with here.transaction() as db:
        db.execute("DROP TABLE _rk_unlinked")
    with cache(here.path) as again:
        assert query(again, "SELECT name FROM sqlite_master ORDER BY name") == tables


def test_events_that_are_no_records_are_passed_over(here: Database) -> None:
    bad = robot.sign(78, [["d", "nmem:obs:s:" + "0" * 64]], "{}", NOW)
    assert put_all(here, [bad], robot.pubkey, NOBODY) == 0
    assert rows(here, "_rk_passed_over") == [(bad.id, NOW)]


# -- of several authors ---------------------------------------------------------------------------


def observed(session: str = "s", text: str = "tea", at: int = NOW) -> Event:
    return rover.sign(
        *observation_draft(Observation(session, at, "marker", "AgentMarker", text), "rook")
    )


@pytest.mark.proves("M-07")
@pytest.mark.parametrize(
    ("signers", "is_pinned"),
    [((), False), ((rover,), True), ((owner,), True), ((alice,), False), ((robot,), False)],
    ids=["nobody", "author", "owner", "stranger", "another agent"],
)
def test_pins_of_the_author_and_of_the_owner_count(
    here: Database, signers: tuple[Any, ...], *, is_pinned: bool
) -> None:
    event = observed()
    pins = [key.sign(*pin_draft(Pin(event.id, is_pinned=True, at=NOW))) for key in signers]
    put_all(here, [event, *pins], robot.pubkey, frozenset({owner.pubkey}))
    assert query(here, "SELECT is_pinned FROM observations") == [(int(is_pinned),)]


@pytest.mark.proves("M-07")
def test_a_pin_taken_back_or_deleted_pins_no_more(here: Database) -> None:
    event = observed()
    pin = rover.sign(*pin_draft(Pin(event.id, is_pinned=True, at=NOW)))
    back = rover.sign(*pin_draft(Pin(event.id, is_pinned=False, at=NOW + 1), NOW))
    put_all(here, [event, pin], robot.pubkey, NOBODY)
    put_all(here, [back], robot.pubkey, NOBODY)
    assert query(here, "SELECT is_pinned FROM observations") == [(0,)]
    put_all(here, [pin], robot.pubkey, NOBODY)  # late, and older
    assert query(here, "SELECT is_pinned FROM observations") == [(0,)]
    again = rover.sign(*pin_draft(Pin(event.id, is_pinned=True, at=NOW + 2), NOW + 1))
    put_all(here, [again], robot.pubkey, NOBODY)
    assert query(here, "SELECT is_pinned FROM observations") == [(1,)]
    assert drop_deleted(here, [(again.id, rover.pubkey)]) == 1
    assert query(here, "SELECT is_pinned FROM observations") == [(0,)]


def test_session_versions_prefer_ones_own_then_the_lowest_key(
    here: Database,
) -> None:
    keys = sorted((rover, alice, owner), key=lambda key: key.pubkey)
    said = {
        key: key.sign(*session_draft(Session("s", key.pubkey[:8], NOW + number)))
        for number, key in enumerate((*keys, robot))
    }

    def project() -> str:
        return str(rows(here, "sessions")[0][1])

    for key in (keys[2], keys[0], keys[1]):
        put_all(here, [said[key]], robot.pubkey, NOBODY)
    assert project() == keys[0].pubkey[:8]
    put_all(here, [said[robot]], robot.pubkey, NOBODY)
    newer = keys[0].sign(*session_draft(Session("s", "newer", NOW + 99)))
    put_all(here, [newer], robot.pubkey, NOBODY)
    assert project() == robot.pubkey[:8]
    assert len(rows(here, "_rk_sessions")) == 4


def test_what_others_dated_after_its_event_is_passed_over(here: Database) -> None:
    """Dates of the year 2096 stood before one's own, which were then left out, for ever."""
    late = 4_000_000_000
    drafts = [
        session_draft(Session("t", "rook", late, summary=Summary("hers"))),
        session_draft(Session("u", "rook", NOW, late, summary=Summary("hers"))),
        prompt_draft(Prompt("t", late, Source.USER, "hers")),
        observation_draft(Observation("v", late, "marker", "AgentMarker", "hers"), "rook"),
    ]
    events = [rover.sign(*draft._replace(created_at=NOW)) for draft in drafts]
    assert put_all(here, events, robot.pubkey, NOBODY) == 0
    assert {id_ for id_, _ in rows(here, "_rk_passed_over")} == {event.id for event in events}
    assert rows(here, "sessions") == []
    ahead = [rover.sign(*draft._replace(created_at=late - 900)) for draft in drafts]
    assert put_all(here, ahead, robot.pubkey, NOBODY) == 4, "by a clock that is ahead"


def test_only_its_author_has_a_record_deleted(here: Database) -> None:
    event = observed()
    put_all(here, [event], robot.pubkey, NOBODY)
    assert drop_deleted(here, [(event.id, alice.pubkey)]) == 0
    assert drop_deleted(here, [(event.id, rover.pubkey)]) == 1
    assert rows(here, "observations") == []


@pytest.mark.parametrize(
    "draft",
    [
        observation_draft(Observation("s", NOW, "marker", "Stop", "hers"), "rook"),
        prompt_draft(Prompt("s", NOW, Source.USER, "hers")),
    ],
    ids=["observation", "prompt"],
)
def test_a_record_that_came_after_its_copy_is_there_when_the_copy_is_dropped(
    here: Database, draft: Draft
) -> None:
    copy, original = (rover.sign(*draft._replace(created_at=NOW - 9)), alice.sign(*draft))
    for event in (copy, original):
        put_all(here, [event], robot.pubkey, NOBODY)
    drop_deleted(here, [(copy.id, rover.pubkey)])
    assert original.id not in {id_ for id_, _ in rows(here, "_rk_passed_over")}, "not fetched again"
    assert put_all(here, [original], robot.pubkey, NOBODY) == 1


def test_records_are_dropped_without_reading_all_passed_over_for_each(here: Database) -> None:
    """Another agent of the group makes as many as it likes: 500 of its records took 21 s."""
    events = [observed(text=f"tea {number}") for number in range(40)]

    def steps_of_dropping() -> int:
        put_all(here, events, robot.pubkey, NOBODY)
        with here.transaction() as db:
            count = itertools.count()
            db.set_progress_handler(lambda: next(count) and 0, 100)
            assert drop_batch(db, [(event.id, rover.pubkey) for event in events]) == 40
            db.set_progress_handler(None, 100)
        return next(count)

    before = steps_of_dropping()
    with here.transaction() as db:
        ignore_events(db, [(f"{number:064x}", number) for number in range(5_000)])
    assert steps_of_dropping() < 4 * before + 500


def test_a_write_is_done_though_another_program_keeps_it_from_erasing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored: who was told otherwise wrote it again."""
    path = tmp_path / "nmem.db"
    with closing(Database(path, busy_s=0.01)) as here, closing(Database(path)) as other:
        erase = here._erase

        def late() -> None:
            with other.transaction():
                erase()

        monkeypatch.setattr(here, "_erase", late)
        with here.transaction() as db:
            set_about(db, {MUST_ERASE: "1", "x": "written"})
        monkeypatch.undo()
        with here.reading() as db:
            assert about(db, "x") == "written"
            assert about(db, MUST_ERASE) is not None, "done by the next"


def test_a_context_is_made_of_a_bounded_number_of_rows(
    here: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session started late, or without one, when another agent of the group had pinned 20,000."""
    a_session(here)
    events = [observed(f"of rover {number}", at=NOW + 9 + number) for number in range(20)]
    pins = [rover.sign(*pin_draft(Pin(event.id, is_pinned=True, at=NOW))) for event in events]
    put_all(here, [*events, *pins], robot.pubkey, NOBODY)
    read: list[Found] = []

    def found(row: Any) -> Found:
        read.append(_found(row))
        return read[-1]

    monkeypatch.setattr(queries, "_MOST_READ", 3)
    monkeypatch.setattr(queries, "_found", found)
    with here.reading() as db:
        context = context_of(db, "rook", NOW + 60)
    assert len(read) <= 9
    assert "/w/s/2.py" in context


def test_own_sessions_are_told_beside_any_number_of_others(here: Database) -> None:
    def summed(name: str, at: int, key: SecretKey) -> Event:
        made = Session(name, "rook", at, at, (), Summary(f"did {name}"))
        return key.sign(*session_draft(made, None))

    theirs = [summed(f"rover {each}", NOW + each, rover) for each in range(40)]
    put_all(here, [summed("mine", NOW - 9_000, robot), *theirs], robot.pubkey, NOBODY)
    with here.reading() as db:
        told_of = context_of(db, "rook", NOW + 60)
    assert "did mine" in told_of
    assert "did rover 39" in told_of
    assert told_of.count("did ") == 3


def test_what_another_key_had_published_before_is_recorded_as_ones_own(here: Database) -> None:
    """It was acknowledged and never sent, and was gone when the other key deleted its copy."""
    a_session(here)
    prompt = Prompt("s", NOW, Source.USER, "yes, go on")
    marker = Observation("s", NOW, "marker", "AgentMarker", "the key rotates on friday")
    drafts = prompt_draft(prompt, "tea"), observation_draft(marker, "rook", "tea")
    guessed = [rover.sign(*draft._replace(created_at=NOW - 9)) for draft in drafts]
    put_all(here, guessed, robot.pubkey, NOBODY)
    for _ in range(2):
        with here.transaction() as db:
            taken = [
                record_prompt(db, prompt, "tea"),
                record_observation(db, marker, "rook", "tea"),
            ]
    assert taken == [None, None], "the second time it is one's own"
    assert drop_deleted(here, [(event.id, rover.pubkey) for event in guessed]) == 0
    assert {draft.d for draft in drafts} <= {event.d for event in sent(here)}
    assert put_all(here, guessed, robot.pubkey, NOBODY) == 0
    assert {author for _, _, author, *_ in rows(here, "_rk_observations")} == {""}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_session_in_use_loses_the_text_of_its_dropped_version(
    here: Database, *, is_first: bool
) -> None:
    first, second = sorted((rover, alice), key=lambda key: key.pubkey)
    bad, good = (first, second) if is_first else (second, first)
    event = observed()
    poison, tea = (
        key.sign(*session_draft(Session("s", word, NOW, NOW + 9, summary=Summary(word))))
        for key, word in ((bad, "poison"), (good, "tea"))
    )
    put_all(here, [event, poison, tea], robot.pubkey, NOBODY)
    assert drop_deleted(here, [(poison.id, bad.pubkey)]) == 1
    assert "poison" not in str(rows(here, "sessions"))
    put_all(here, [tea], robot.pubkey, NOBODY)  # fetched again, if it is no longer known
    ((_, project, *_, summary),) = rows(here, "sessions")
    assert project == "tea"
    assert summary_of(summary)["intent"] == "tea"


@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_nobody_else_names_the_project_of_an_own_record(
    here: Database, order: tuple[int, ...], *, has_record: bool
) -> None:
    """Neither by a version of its session, nor by a record in it."""
    bind(here, robot.pubkey)
    marker = observation_draft(Observation("s", NOW + 1, "marker", "Stop", "kettle"), "tea")
    poison = observation_draft(Observation("s", NOW, "marker", "Stop", "hers"), "poison")
    events = [
        robot.sign(*marker),
        rover.sign(*session_draft(Session("s", "poison", NOW, NOW + 9))),
        rover.sign(*poison),
    ]
    if has_record:
        own = robot.sign(*session_draft(Session("s", "tea", NOW)))
        put_all(here, [own], robot.pubkey, NOBODY)
    for number in order:
        put_all(here, [events[number]], robot.pubkey, NOBODY)
    if has_record:
        assert drop_deleted(here, [(own.id, robot.pubkey)]) == 1
        put_all(here, events[1:], robot.pubkey, NOBODY)  # fetched again
    with here.reading() as db:
        (found,) = search(db, "kettle", ANYWHERE, Order.RELEVANCE, NOW, 9, 0)
    assert (found.project, found.author) == ("tea", "")


@pytest.mark.parametrize("signer", [robot, alice])
@pytest.mark.parametrize("is_prompt", [True, False])
def test_a_record_is_not_shown_with_the_project_that_a_third_key_named(
    here: Database, signer: SecretKey, *, is_prompt: bool
) -> None:
    said = prompt_draft(Prompt("s", NOW + 1, Source.USER, "kettle"))
    seen = observation_draft(Observation("s", NOW + 1, "marker", "Stop", "kettle"), "tea")
    named = rover.sign(*session_draft(Session("s", "poison", NOW, NOW + 9)))
    put_all(here, [named, signer.sign(*(said if is_prompt else seen))], robot.pubkey, NOBODY)
    with here.reading() as db:
        (found,) = search(db, "kettle", ANYWHERE, Order.RELEVANCE, NOW, 9, 0)
    is_named = signer is robot and not is_prompt
    assert found.project == ("tea" if is_named else "unknown")


def test_a_session_leaves_with_its_last_row_whatever_the_order(here: Database) -> None:
    event = observed()
    session = rover.sign(*session_draft(Session("s", "rook", NOW)))
    put_all(here, [event], robot.pubkey, NOBODY)
    drop_deleted(here, [(event.id, rover.pubkey)])
    assert rows(here, "sessions") == []
    put_all(here, [event, session], robot.pubkey, NOBODY)
    drop_deleted(here, [(session.id, rover.pubkey), (event.id, rover.pubkey)])
    assert rows(here, "sessions") == []


@pytest.mark.parametrize("since", ["continued", "recorded again", "of another event"])
def test_what_was_recorded_since_stays_when_its_record_is_refused_as_deleted(
    here: Database, since: str
) -> None:
    bind(here, robot.pubkey)
    a_session(here)
    refused = [(each, robot.sign(*each.draft)) for each in waiting_after(here, 0, -1)]
    if since == "continued":
        refused = [each for each in refused if each[1].d == "nmem:session:s"]
        told(here, "Stop", NOW + 9)
    elif since == "recorded again":
        purged(here, Purge(session="s"), NOW + 9)
        a_session(here, at=NOW + 10)
    else:
        refused = [each for each in refused if each[1].kind == 78]
        again = [robot.sign(78, each.tags, each.content, NOW + 9) for _, each in refused]
        put_all(here, again, robot.pubkey, NOBODY)
    before = fetch_all(here)
    record_answers(here, [], [], refused)
    assert fetch_all(here) == before


# -- what leaves it -------------------------------------------------------------------------------


@pytest.mark.proves("M-25")
def test_old_rows_of_sessions_that_were_summed_up_leave_the_cache(here: Database) -> None:
    a_session(here, "old")
    a_session(here, "not-summed-up")
    with here.transaction() as db:
        summarise(db, "old", Summary("tea"), None)
    events = sent(here)
    with here.transaction() as db:
        target = db.execute(
            "SELECT event_id FROM _rk_observations WHERE observation_id = 1"
        ).fetchone()[0]
        record_pin(db, 1, target, NOW, None, is_pinned=True)
    assert sweep(here, NOW + 365 * DAY) == Removed()
    assert sweep(here, NOW + 366 * DAY) == Removed(observations=2)
    assert put_all(here, events, robot.pubkey, NOBODY) == 0  # they do not come back
    query(here, "UPDATE observations SET is_pinned = 0")
    assert sweep(here, NOW + 366 * DAY) == Removed(observations=1, prompts=1, sessions=1)
    assert [row[0] for row in rows(here, "sessions")] == ["not-summed-up"]


@pytest.mark.proves("M-25")
def test_unsent_rows_are_not_swept(here: Database) -> None:
    a_session(here)
    with here.transaction() as db:
        summarise(db, "s", Summary("tea"), None)
    for is_pinned in (True, False):  # which gives it an event id
        pinned(here, 1, is_pinned=is_pinned)
    assert sweep(here, NOW + 9_999 * DAY) == Removed()


def purged(here: Database, wanted: Purge, now: int = NOW) -> Purged:
    with here.transaction() as db:
        counted = purge(db, wanted, now, is_confirmed=False)
    with here.transaction() as db:
        assert purge(db, wanted, now, is_confirmed=True) == counted
    return counted


@pytest.mark.parametrize(
    ("wanted", "removed"),
    [
        (Purge(session="s"), Purged(3, 1, 1)),
        (Purge(project="rook"), Purged(6, 2, 2)),
        (Purge(project="none"), Purged()),
        (Purge(before=NOW + 4), Purged(2, 1, 0)),
        (Purge(id=2), Purged(1)),
        (Purge(obs_type="file_edit"), Purged(6)),
        (Purge(search="t 1.py"), Purged(1)),
        (Purge(search="work OR 1.py"), Purged(2, 2)),
        (Purge(search="work", project="none"), Purged()),
        (Purge(search="work", before=NOW + 100), Purged(0, 1)),
        (Purge(search="work", obs_type="file_edit"), Purged()),
        (Purge(search="work", id=1), Purged()),
        (Purge(id=-2), Purged(0, 1)),
        (Purge(search="  "), Purged()),
        (Purge(session="s", obs_type="file_read"), Purged()),
    ],
    ids=str,
)
def test_a_purge_matches_all_conditions(here: Database, wanted: Purge, removed: Purged) -> None:
    a_session(here, "s")
    a_session(here, "t", NOW + 100)
    events = sent(here)
    assert purged(here, wanted) == removed
    deletions = sent(here)
    asked = [value for event in deletions for value in event.tag_values("e")]
    assert len(asked) == removed.total
    assert len(rows(here, "observations")) == 6 - removed.observations
    assert {event.kind for event in deletions} <= {5}
    assert drop_deleted(here, [(id_, robot.pubkey) for id_ in asked]) == 0
    assert len(events) == 10


def test_a_purge_by_words_takes_them_out_of_summaries(here: Database, tmp_path: Path) -> None:
    """A session keeps its record, which says when it was; every version with the words goes."""
    bind(here, robot.pubkey)
    for session, text in (("s", "fixed the kettles"), ("t", "learned nothing"), ("u", "kettle")):
        a_session(here, session, edits=2 if session == "u" else 3)
        with here.transaction() as db:
            summarise(db, session, Summary("work", learned=(text,), notes={"of": ["tea"]}), None)
    mine = sent(here)
    assert purged(here, Purge(search="learned"), NOW + 50) == Purged(summaries=1)
    assert purged(here, Purge(search="tea AND kettle"), NOW + 60) == Purged(summaries=2)
    assert purged(here, Purge(search="empty"), NOW + 70) == Purged()
    left = {row[0]: row[5] for row in rows(here, "sessions")}
    assert left["s"] is left["t"] is None
    assert summary_of(left["u"]) == EMPTY_SESSION.fields(), "or it would never be swept"
    assert [len(rows(here, table)) for table in ("observations", "prompts")] == [8, 3]
    events = sent(here)
    deletions = [event for event in events if event.kind == 5]
    newer = [event for event in events if event.kind != 5]
    gone = {each.id for event in deletions for each in named_by(event, [*mine, *newer])}
    assert gone == {event.id for event in mine if event.d.startswith("nmem:session:")}
    with cache(tmp_path / "there" / "nmem.db") as there:
        kept = [event for event in (*mine, *newer) if event.id not in gone]
        put_all(there, kept, robot.pubkey, NOBODY)
        assert rows(there, "sessions") == rows(here, "sessions")


@pytest.mark.parametrize(
    "where",
    [
        {"metadata": {"response": "no such file\nzebra"}},
        {"metadata": {"commit": [{"zebra": 1}]}},
        {"file_path": "/w/zebra/plan.txt"},
    ],
    ids=["metadata", "name of a field", "path"],
)
def test_a_purge_by_words_looks_into_all_of_an_observation(
    here: Database, where: dict[str, Any]
) -> None:
    """The output of a failed command was left, and no search found it any more."""
    a_session(here)
    with here.transaction() as db:
        made = Observation("s", NOW + 50, "command_failed", "PostToolUse", "cat", **where)
        assert record_observation(db, made, "rook", None)
    assert purged(here, Purge(search="zebra")) == Purged(1)
    assert not any("zebra" in event.content for event in sent(here) if event.kind != 5)


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (Purge(project="rook"), ["paint the zebra"]),
        (Purge(search="zebras"), ["feed the heron"]),
        (Purge(search="zebra", project="rook"), ["feed the heron", "paint the zebra"]),
        (Purge(before=NOW + 1), ["paint the zebra"]),
        (Purge(session="s"), ["feed the heron", "paint the zebra"]),
        (Purge(obs_type="marker"), ["feed the heron", "paint the zebra"]),
    ],
    ids=str,
)
def test_a_purge_includes_tasks(here: Database, wanted: Purge, left: list[str]) -> None:
    with here.transaction() as db:
        add_task(db, "feed the heron", "rook", None, NOW, None)
        add_task(db, "paint the zebra", None, None, NOW + 1, None)
    assert purged(here, wanted) == Purged(tasks=2 - len(left))
    with here.reading() as db:
        assert [text for (text,) in db.execute("SELECT prompt FROM _rk_tasks ORDER BY id")] == left


def test_a_purge_of_unsent_records_queues_no_deletion(here: Database) -> None:
    a_session(here)
    assert purged(here, Purge(session="s")) == Purged(3, 1, 1)
    assert sent(here) == []


def test_a_purge_also_deletes_records_in_flight(here: Database) -> None:
    """The relay may have it, and its answer was lost: else it would come back from there."""
    bind(here, robot.pubkey)
    a_session(here)
    with here.reading() as db:
        waiting = db.execute("SELECT kind, tags, content, created_at FROM _rk_outbox").fetchall()
    ids = {robot.sign(kind, json.loads(tags), text, at).id for kind, tags, text, at in waiting}
    assert purged(here, Purge(session="s")) == Purged(3, 1, 1)
    deletions = sent(here)
    assert {id_ for event in deletions for id_ in event.tag_values("e")} == ids
    assert len(ids) == 5


def test_a_purge_deletes_the_versions_of_a_session_that_another_machine_wrote(
    here: Database, tmp_path: Path
) -> None:
    """It was fetched again, and told at the next start. A kind 5 names one address alone: who reads
    one of several sessions would learn of the others."""
    bind(here, robot.pubkey)
    a_session(here, "s")
    a_session(here, "t")
    mine = sent(here)
    with cache(tmp_path / "there" / "nmem.db") as there:
        put_all(there, mine, robot.pubkey, NOBODY)
        with there.transaction() as db:
            summarise(db, "s", Summary("launch"), None)
        (newer,) = sent(there)
    purged(here, Purge(project="rook"), NOW + DAY)
    deletions = sent(here)
    assert [event.tag_values("a") for event in deletions] == [
        [f"30078:{robot.pubkey}:nmem:session:s"],
        [f"30078:{robot.pubkey}:nmem:session:t"],
        [],
    ]
    assert [event.tag_values("k") for event in deletions] == [["30078"], ["30078"], ["78"]]
    assert {each.id for event in deletions for each in named_by(event, [*mine, newer])} == {
        event.id for event in [*mine, newer]
    }


def test_a_version_that_waits_to_be_deleted_is_not_taken_in(here: Database, tmp_path: Path) -> None:
    bind(here, robot.pubkey)
    a_session(here)
    mine = sent(here)
    with cache(tmp_path / "there" / "nmem.db") as there:
        put_all(there, mine, robot.pubkey, NOBODY)
        with there.transaction() as db:
            summarise(db, "s", Summary("launch"), None)
        newer = sent(there)
    purged(here, Purge(session="s"), NOW + DAY)
    assert put_all(here, newer, robot.pubkey, NOBODY) == 0
    rebuild(here, None, newer, robot.pubkey, NOBODY)
    assert rows(here, "sessions") == []


def test_what_is_purged_while_it_is_fetched_does_not_come_back(here: Database) -> None:
    bind(here, robot.pubkey)
    a_session(here)
    with here.reading() as db:
        waiting = db.execute("SELECT kind, tags, content, created_at FROM _rk_outbox").fetchall()
    events = [robot.sign(kind, json.loads(tags), text, at) for kind, tags, text, at in waiting]
    purge_after = [lambda: purged(here, Purge(session="s"))]

    def progress(_: int) -> None:
        if purge_after:
            purge_after.pop()()

    put_all(here, events, robot.pubkey, NOBODY, batch=1, progress=progress)
    assert rows(here, "observations") == rows(here, "prompts") == []


def test_a_purge_keeps_records_of_others(here: Database) -> None:
    put_all(here, [observed()], robot.pubkey, NOBODY)
    assert purged(here, Purge(obs_type="marker")) == Purged()


# -- found ----------------------------------------------------------------------------------------


@pytest.mark.proves("M-26")
def test_a_search_narrows_pages_and_orders(here: Database) -> None:
    for number, text in enumerate(("tea", "tea tea", "a long text about tea", "coffee")):
        told(
            here,
            "PostToolUse",
            NOW + number * DAY,
            f"s{number % 2}",
            tool_name="Grep",
            tool_input={"pattern": text},
        )
    told(here, "PostToolUse", NOW, "s0", tool_name="Edit", tool_input={"file_path": "/tea"})

    def found(
        text: str,
        scope: Scope = ANYWHERE,
        order: Order = Order.RELEVANCE,
        limit: int = 9,
        offset: int = 0,
    ) -> list[int]:
        with here.reading() as db:
            hits = search(db, text, scope, order, NOW + 3 * DAY, limit, offset)
        return [hit.id for hit in hits]

    assert sorted(found("TEAS")) == [1, 2, 3, 5]
    assert found("tea", limit=2) + found("tea", limit=2, offset=2) == found("tea")
    assert found("tea", order=Order.BLENDED)[0] == 5  # an edit
    assert found("tea", order=Order.BLENDED, limit=1, offset=1) == [
        found("tea", order=Order.BLENDED)[1]
    ]
    assert found("tea", Scope(obs_type="file_edit")) == [5]
    assert found("tea", Scope(before=NOW)) == []
    assert found("tea", Scope(after=NOW + DAY, before=NOW + 2 * DAY)) == [2]
    assert found("tea", Scope(after=NOW + DAY + 1, before=NOW + 2 * DAY)) == []
    assert found("tea", Scope(project="none")) == found(" ") == found('"') == []
    assert found("tea NEAR coffee") == []


@pytest.mark.proves("M-08", "M-26")
@pytest.mark.parametrize("order", Order)
def test_prompts_are_found_beside_observations(here: Database, order: Order) -> None:
    a_session(here, "s", edits=3)
    told(here, "UserPromptSubmit", NOW + 60, "s", prompt="why is the kettle so loud")
    for at, pattern in ((61, "kettle"), (62, "prompt")):
        given = {"pattern": pattern}
        told(here, "PostToolUse", NOW + at, "s", tool_name="Grep", tool_input=given)

    def found(text: str, scope: Scope = ANYWHERE, limit: int = 9, offset: int = 0) -> list[Found]:
        with here.reading() as db:
            return search(db, text, scope, order, NOW + DAY, limit, offset)

    assert [each.id for each in found("loud")] == [-2]
    (prompt,) = found("loud")
    assert (prompt.obs_type, prompt.source_event) == ("prompt", "user")
    assert (prompt.content, prompt.project) == ("why is the kettle so loud", "rook")
    assert (prompt.session_id, prompt.timestamp) == ("s", NOW + 60)
    both = [each.id for each in found("kettle")]
    assert sorted(both) == [-2, 4]
    assert [each.id for at in (0, 1) for each in found("kettle", limit=1, offset=at)] == both
    assert found("kettle", offset=2**63 - 1) == []
    assert [each.id for each in found("kettle", Scope(obs_type="prompt"))] == [-2]
    assert [each.id for each in found("kettle", Scope(obs_type="search"))] == [4]
    assert found("kettle", Scope(before=NOW + 60)) == found("kettle", Scope(project="x")) == []
    with here.reading() as db:
        around = timeline(db, -2, 1, 1)
    assert around is not None
    assert [each.id for each in around] == [3, -2, 4]


def test_a_timeline_surrounds_its_anchor(here: Database) -> None:
    a_session(here, "s", edits=6)
    with here.reading() as db:
        found = timeline(db, 3, 1, 2)
        assert found is not None
        assert [each.id for each in found] == [2, 3, 4, 5]
        assert timeline(db, 99, 1, 1) is None
