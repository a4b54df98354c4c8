"""`rookery export` and `rookery import` (relay/cli), on a fake data folder."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import signal
import stat
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import orjson
import pytest

from relay.cli import import_lines, run
from relay.cli.import_lines import MAX_LINE, ImportProgress, Place, batch_of
from relay.cli.importing import import_events
from relay.errors import StoreFault, is_error
from relay.facts import Origin
from relay.nostr.event import event_from
from relay.nostr.keys import is_signed
from relay.server.control import Rows
from tests.cast import alice, bob, stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

NOW = 1_700_000_000
NOTES = [alice.sign(1, [], f"note {number}", NOW + number) for number in range(8)]
NEWER = alice.sign(0, [], "{}", NOW + 1)
OLDER = alice.sign(0, [], "{}", NOW)
STRANGE = stranger.sign(1, [], "let me in", NOW)
PASSING = alice.sign(20_001, [], "now", NOW)


class FakeFolder:
    """A store in a dict; refuses the stranger, and whatever it was told to."""

    def __init__(self) -> None:
        self.rows: dict[str, Event] = {}
        self.origins: list[Origin] = []
        self.batches: list[int] = []
        self.fails: Callable[[Event], str | None] = lambda _: None
        """What is wrong with an event, on our side."""
        self.breaks_after: int | None = None
        """So many batches are taken, then the relay is gone."""
        self.breaks_with: Exception | type[BaseException] = StoreFault("the relay went away")

    async def submit(self, events: Sequence[Event], origin: Origin) -> Sequence[tuple[bool, str]]:
        if self.breaks_after is not None and len(self.batches) >= self.breaks_after:
            raise self.breaks_with
        self.batches.append(len(events))
        self.origins.append(origin)
        answers: list[tuple[bool, str]] = []
        for event in events:
            is_after_error = bool(answers) and is_error(answers[-1])
            answers.append(
                (False, "error: one before it") if is_after_error else self._answer(event, origin)
            )
        return answers

    def _answer(self, event: Event, origin: Origin) -> tuple[bool, str]:
        if not is_signed(event):
            return False, "invalid: sig: does not fit"
        if event.id in self.rows:
            return True, "duplicate: already have this event"
        if event.id == OLDER.id and NEWER.id in self.rows:
            return False, "duplicate: a newer version is stored"
        if event.pubkey == stranger.pubkey and origin is Origin.IMPORT:
            return False, "restricted: only people known here may write"
        fault = self.fails(event)
        if fault is not None:
            return False, fault
        if event.id != PASSING.id:
            self.rows[event.id] = event
        return True, ""

    async def events(
        self, filter_: Filter, _rows: Rows = Rows.ALL
    ) -> AsyncIterator[Sequence[bytes]]:
        rows = [event.raw for event in self.rows.values() if filter_.matches(event)]
        for start in range(0, len(rows), 3):
            yield rows[start : start + 3]
        yield []

    async def head(self) -> int:
        return len(self.rows)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> FakeFolder:
    """What every command finds in whatever DIR it opens."""
    fake, module = FakeFolder(), ModuleType("relay.cli.data_folder")

    @asynccontextmanager
    async def open_folder(_: Path) -> AsyncIterator[FakeFolder]:
        yield fake

    module.open_folder = open_folder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "relay.cli.data_folder", module)
    return fake


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def write(file: Path, *lines: Event | bytes) -> None:
    file.write_bytes(
        b"".join((line if isinstance(line, bytes) else line.raw) + b"\n" for line in lines)
    )


def imported(data: Path, file: Path | str, *options: str) -> int:
    return run(["import", str(file), "--data", str(data), *options])


def notes_in(data: Path) -> list[str]:
    return [path.name for path in data.iterdir()]


# -- export ---------------------------------------------------------------------------------------


def exported(data: Path, *options: str) -> int:
    return run(["export", "--data", str(data), *options])


def test_an_export_without_a_match_says_so(
    folder: FakeFolder, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exported(data, "--filter", '{"kinds":[7]}') == 0
    assert capsys.readouterr() == ("", "0 events, 0 bytes\n")


def lines_of(*events: Event) -> bytes:
    return b"".join(event.raw + b"\n" for event in events)


def test_an_export_contains_the_stored_bytes_in_order(
    folder: FakeFolder, data: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder.rows = {note.id: note for note in reversed(NOTES)}
    assert exported(data) == 0
    out, err = capfdbinary.readouterr()
    assert out == lines_of(*reversed(NOTES))
    assert err == b""


def test_an_export_made_twice_is_the_same_to_the_byte(
    folder: FakeFolder, data: Path, tmp_path: Path
) -> None:
    folder.rows = {note.id: note for note in NOTES}
    one, other = tmp_path / "1", tmp_path / "2"
    assert exported(data, "-o", str(one)) == exported(data, "-o", str(other)) == 0
    assert one.read_bytes() == other.read_bytes() == lines_of(*NOTES)


def test_a_filter_selects_exported_events(
    folder: FakeFolder, data: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    theirs = bob.sign(1, [["h", "tea"]], "hi", NOW)
    folder.rows = {event.id: event for event in (*NOTES, theirs)}
    assert exported(data, "--filter", '{"kinds":[1],"#h":["tea"]}') == 0
    assert capfdbinary.readouterr().out == lines_of(theirs)


def test_a_filter_names_keys_as_npub_too(
    folder: FakeFolder, data: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    theirs = bob.sign(1, [["p", alice.pubkey]], "hi", NOW)
    folder.rows = {event.id: event for event in (*NOTES, theirs)}
    chosen = f'{{"authors":["{bob.npub}","{alice.pubkey}"],"#p":["{alice.npub}"]}}'
    assert exported(data, "--filter", chosen) == 0
    assert capfdbinary.readouterr().out == lines_of(theirs)


def test_a_filter_may_use_indexed_tags(
    folder: FakeFolder, data: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (data / "rookery.toml").write_text('[storage]\nindex_tags = ["title"]\n')
    tea = bob.sign(1, [["title", "tea"]], "hi", NOW)
    folder.rows = {event.id: event for event in (*NOTES, tea)}
    assert exported(data, "--filter", '{"#title":["tea"]}') == 0
    assert capfdbinary.readouterr().out == lines_of(tea)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "--filter: not JSON (column"),
        ("[]", "--filter: filter: must be a JSON object"),
        ('{"kinds":["x"]}', "--filter: kinds: every value must be an integer"),
        ('{"authors":["npub1x"]}', "--filter: not a valid npub"),
        ('{"#nope":["x"]}', "--filter: filter contains unknown elements"),
        ('{"limit":5}', "--filter: limit and search are not supported"),
        ('{"search":"tea"}', "--filter: search is not supported here"),
    ],
)
def test_an_invalid_filter_is_a_usage_error(
    folder: FakeFolder, data: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exported(data, "--filter", text) == 2
    assert said in capsys.readouterr().err


def test_faults_of_rookery_toml_are_reported_with_lines(
    folder: FakeFolder, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "rookery.toml").write_text("[storage]\nindex = 1\n")
    assert exported(data, "--filter", "{}") == 1
    assert "rookery.toml:2: unknown key" in capsys.readouterr().err


def test_the_summary_of_an_export_to_a_file_is_on_stderr_or_as_json(
    folder: FakeFolder, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.rows = {note.id: note for note in NOTES}
    target = tmp_path / "out"
    size = len(lines_of(*NOTES))
    exported(data, "-o", str(target))
    assert capsys.readouterr() == ("", f"8 events, {size:,} bytes to {target}\n")
    exported(data, "-o", str(target), "--json")
    out, err = capsys.readouterr()
    assert orjson.loads(out) == {"events": 8, "bytes": size, "file": str(target)}
    assert err == ""


def test_with_events_on_stdout_the_json_summary_is_on_stderr(
    folder: FakeFolder, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.rows = {NOTES[0].id: NOTES[0]}
    assert exported(data, "--json", "-o", "-") == 0
    out, err = capfd.readouterr()
    assert out.encode() == lines_of(NOTES[0])
    assert orjson.loads(err) == {"events": 1, "bytes": len(out)}


def test_on_a_terminal_an_export_has_no_control_characters_but_the_same_events(
    folder: FakeFolder, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = alice.sign(1, [], "a\x9b2J\u202e\x1b[31m\u2028\u2066é", NOW)
    folder.rows = {note.id: note}
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal, open(ours, "rb", buffering=0) as shown:
        monkeypatch.setattr("sys.stdout", terminal)
        assert exported(data) == 0
        line = shown.read(4096)
    assert all(sign.isprintable() for sign in line.decode().strip())
    assert event_from(orjson.loads(line)) == note


def test_a_failed_export_keeps_the_old_file(
    folder: FakeFolder, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> AsyncIterator[Sequence[bytes]]:
        yield [NOTES[0].raw]
        raise StoreFault("file damaged")

    monkeypatch.setattr(folder, "events", broken)
    target = tmp_path / "out"
    target.write_text("yesterday's")
    assert exported(data, "-o", str(target)) == 1
    assert target.read_text() == "yesterday's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out"]


def test_an_exported_file_is_private(folder: FakeFolder, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    exported(data, "-o", str(target))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_an_export_through_a_link_keeps_the_link(
    folder: FakeFolder, data: Path, tmp_path: Path
) -> None:
    folder.rows = {NOTES[0].id: NOTES[0]}
    target, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(target)
    exported(data, "-o", str(link))
    assert link.is_symlink()
    assert target.read_bytes() == lines_of(NOTES[0])


def test_a_device_is_written_to_and_not_replaced(folder: FakeFolder, data: Path) -> None:
    folder.rows = {NOTES[0].id: NOTES[0]}
    assert exported(data, "-o", "/dev/null") == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_an_unwritable_folder_is_named(
    folder: FakeFolder, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exported(data, "-o", str(tmp_path / "nowhere" / "out")) == 1
    assert f"{tmp_path}/nowhere/out: No such file" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.slow
def test_a_closed_pipe_ends_an_export_without_a_traceback(tmp_path: Path) -> None:
    program = (
        "import sys; from tests.unit.cli import test_data as t; from types import ModuleType\n"
        "from contextlib import asynccontextmanager\n"
        "fake, module = t.FakeFolder(), ModuleType('relay.cli.data_folder')\n"
        "fake.rows = {n: t.NOTES[0] for n in range(20_000)}\n"
        "@asynccontextmanager\n"
        "async def open_folder(_): yield fake\n"
        "module.open_folder = open_folder; sys.modules['relay.cli.data_folder'] = module\n"
        "sys.exit(t.run(['export', '--data', sys.argv[1]]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert orjson.loads(child.stdout.readline())["id"] == NOTES[0].id
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1


# -- import: what is read -------------------------------------------------------------------------


def test_an_import_stores_every_event_and_prints_counts(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, *NOTES)
    assert imported(data, file) == 0
    assert list(folder.rows) == [note.id for note in NOTES]
    assert folder.origins == [Origin.IMPORT]
    assert capsys.readouterr() == ("8 read, 8 stored, 0 duplicates, 0 refused\n", "")


def test_an_import_done_twice_changes_nothing(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, *NOTES)
    imported(data, file)
    rows = dict(folder.rows)
    assert imported(data, file) == 0
    assert folder.rows == rows
    assert "8 read, 0 stored, 8 duplicates, 0 refused" in capsys.readouterr().out


def test_an_export_read_back_is_byte_equal(
    folder: FakeFolder, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rows = {event.id: event for event in (*NOTES, NEWER)}
    one, other = tmp_path / "1", tmp_path / "2"
    exported(data, "-o", str(one))
    folder.rows = {}
    assert imported(data, one) == 0
    exported(data, "-o", str(other))
    assert one.read_bytes() == other.read_bytes()


def test_refused_lines_are_reported_with_reason_and_id(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = NOTES[2].raw.replace(NOTES[2].sig.encode(), NOTES[3].sig.encode())
    changed = NOTES[1].raw.replace(b"note 1", b"note x")
    write(
        file,
        NOTES[0],
        b"",
        b"{bad",
        changed,
        STRANGE,
        b'{"id":1}',
        forged,
        b"[]",
        b"x" * (MAX_LINE + 1),
        NOTES[4],
    )
    assert imported(data, file, "-v") == 1
    out, err = capsys.readouterr()
    assert out == "9 read, 2 stored, 0 duplicates, 7 refused\n"
    assert err.splitlines()[:7] == [
        f"{file}:3: invalid: not JSON (column 2)",
        f"{file}:4: invalid: id: is not the hash of this event (id {NOTES[1].id})",
        f"{file}:5: restricted: only people known here may write (id {STRANGE.id})",
        f"{file}:6: invalid: pubkey: missing",
        f"{file}:7: invalid: sig: does not fit (id {NOTES[2].id})",
        f"{file}:8: invalid: event: must be a JSON object",
        f"{file}:9: invalid: line is over {MAX_LINE} bytes",
    ]
    assert "refused 1 × invalid: pubkey: missing (line 6)" in err.splitlines()[7:]


def test_what_lists_refused_lines_does_not_grow_without_end(
    folder: FakeFolder, data: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of two bytes is refused in a hundred."""
    monkeypatch.setattr("relay.cli.importing._MAX_LISTED", 2)
    write(file, *[b"x"] * 9)
    listed = file.with_name("refused.txt")
    assert imported(data, file, "--refused", str(listed)) == 1
    assert listed.read_text().splitlines() == [
        f"{file}:1: invalid: not JSON (column 1)",
        f"{file}:2: invalid: not JSON (column 1)",
        "more lines are only counted",
    ]


def test_refused_lines_are_written_through_no_link(
    folder: FakeFolder, data: Path, file: Path
) -> None:
    """Somebody else may have made it, so that root's command changed a file of root."""
    write(file, b"x")
    listed, target = file.with_name("refused.txt"), file.with_name("target")
    listed.symlink_to(target)
    assert imported(data, file, "--refused", str(listed)) == 1
    assert not target.exists()


def test_refusals_are_counted_by_reason_and_listed_in_a_file(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = [stranger.sign(1, [], f"strange {number}", NOW) for number in range(3)]
    write(file, NOTES[0], *strange, b"{bad")
    listed = file.with_name("refused.txt")
    assert imported(data, file, "--refused", str(listed)) == 1
    reason = "restricted: only people known here may write"
    assert capsys.readouterr() == (
        "5 read, 1 stored, 0 duplicates, 4 refused\n",
        f"refused 3 × {reason} (first line 2)\nrefused 1 × invalid: not JSON (line 5)\n",
    )
    assert listed.read_text().splitlines() == [
        *(f"{file}:{line}: {reason} (id {event.id})" for line, event in enumerate(strange, 2)),
        f"{file}:5: invalid: not JSON (column 2)",
    ]


def test_an_import_into_a_missing_folder_names_restore(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, NOTES[0])
    assert imported(tmp_path / "missing", file) == 1
    said = capsys.readouterr().err
    assert f"`rookery restore FILE {tmp_path / 'missing'}` restores a backup" in said
    assert not (tmp_path / "missing").exists()


def test_duplicates_and_superseded_versions_are_no_refusals(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, NEWER, OLDER, NOTES[0], NOTES[0], PASSING)
    assert imported(data, file) == 0
    assert capsys.readouterr() == (
        "5 read, 2 stored, 1 passed on, 1 duplicate, 1 superseded, 0 refused\n",
        "",
    )


def test_trust_skips_write_permissions(folder: FakeFolder, data: Path, file: Path) -> None:
    write(file, STRANGE)
    assert imported(data, file, "--trust") == 0
    assert folder.origins == [Origin.TRUSTED_IMPORT]


def test_the_summary_of_an_import_can_be_json(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, *NOTES, STRANGE)
    assert imported(data, file, "--json") == 1
    out, err = capsys.readouterr()
    assert orjson.loads(out) == {
        "file": str(file),
        "read": 9,
        "stored": 8,
        "passed_on": 0,
        "duplicates": 0,
        "superseded": 0,
        "left_out": 0,
        "refused": 1,
        "reasons": {"restricted: only people known here may write": {"count": 1, "first_line": 9}},
    }
    assert err.startswith("refused 1 × restricted:")


def test_crlf_bom_and_a_missing_last_newline_are_accepted(
    folder: FakeFolder, data: Path, file: Path
) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + NOTES[0].raw + b"\r\n  \r\n" + NOTES[1].raw)
    assert imported(data, file) == 0
    assert list(folder.rows) == [NOTES[0].id, NOTES[1].id]


def test_a_line_of_maximum_length_is_accepted(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fits = NOTES[0].raw + b" " * (MAX_LINE - len(NOTES[0].raw))
    write(file, fits, fits + b" ", NOTES[1])
    assert imported(data, file) == 1
    assert list(folder.rows) == [NOTES[0].id, NOTES[1].id]
    assert f"invalid: line is over {MAX_LINE} bytes (line 2)" in capsys.readouterr().err


def test_stdin_can_be_imported(
    folder: FakeFolder,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = io.TextIOWrapper(io.BytesIO(lines_of(*NOTES) + b"{\n"))
    monkeypatch.setattr(sys, "stdin", text)
    assert imported(data, "-") == 1
    out, err = capsys.readouterr()
    assert out.startswith("9 read, 8 stored")
    assert err.startswith("refused 1 × invalid: not JSON (line 9)")
    assert notes_in(data) == []


def test_an_empty_file_is_an_import_of_nothing(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file)
    assert imported(data, file) == 0
    assert capsys.readouterr().out == "0 read, 0 stored, 0 duplicates, 0 refused\n"
    assert folder.batches == []


def test_a_missing_file_is_a_usage_error(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert imported(data, file) == 2
    assert "does not exist" in capsys.readouterr().err


def test_refusals_are_printed_without_control_characters(
    folder: FakeFolder, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a\x1b[2Jb"
    write(file, b"{")
    assert imported(data, file) == 1
    assert "\x1b" not in capsys.readouterr().err


# -- import: batches, and going on ----------------------------------------------------------------


def test_a_batch_holds_at_most_512_events(folder: FakeFolder, data: Path, file: Path) -> None:
    write(file, *[NOTES[0]] * 513)
    assert imported(data, file) == 0
    assert folder.batches == [512, 1]


def test_a_batch_of_large_events_holds_fewer(folder: FakeFolder, data: Path, file: Path) -> None:
    large = NOTES[0].raw + b" " * 3_000_000
    write(file, large, large, large, large)
    assert imported(data, file) == 0
    assert folder.batches == [3, 1]


def test_an_import_continues_after_the_last_acknowledged_batch(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, *[NOTES[0]] * 511, b"{", *[NOTES[1]] * 511, STRANGE, NOTES[2])
    folder.breaks_after = 1
    assert imported(data, file) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"rookery: the relay went away; {file} is imported up to line 513; "
        "repeat the command to continue",
    ]
    assert len(notes_in(data)) == 1

    folder.breaks_after = None
    assert imported(data, file) == 1
    assert folder.batches == [512, 512]
    out, err = capsys.readouterr()
    assert out == "1025 read, 3 stored, 1020 duplicates, 2 refused\n"
    assert err.splitlines() == [
        f"{file}: continues after line 513, where an earlier import stopped",
        "refused 1 × invalid: not JSON (line 512)",
        "refused 1 × restricted: only people known here may write (line 1024)",
        "-v lists the refused lines, --refused F writes them to a file",
    ]
    assert notes_in(data) == []


def test_an_import_starts_over_when_the_store_has_lost_what_it_stored(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a power failure, or an older copy put back. The lost lines were left out, and
    counted as stored."""
    write(file, *NOTES[:2], *[STRANGE] * 510, NOTES[2])
    folder.breaks_after = 1
    assert imported(data, file) == 1
    folder.rows.pop(NOTES[1].id)
    folder.breaks_after = None
    capsys.readouterr()
    assert imported(data, file) == 1
    out, err = capsys.readouterr()
    assert out == "513 read, 2 stored, 1 duplicate, 510 refused\n"
    assert err.splitlines()[0] == (
        f"{file}: starts over: an earlier import had come to line 512, but the last event that it"
        " stored is not there"
    )
    assert set(folder.rows) == {note.id for note in NOTES[:3]}


def test_a_duplicate_does_not_tell_that_the_store_has_what_an_import_stored(
    folder: FakeFolder, data: Path, file: Path
) -> None:
    write(file, NOTES[2])
    assert imported(data, file) == 0
    write(file, *NOTES[:2], *[STRANGE] * 509, NOTES[2], NOTES[0])
    folder.breaks_after = 2
    assert imported(data, file) == 1
    folder.rows.pop(NOTES[1].id)  # as it was before
    folder.breaks_after = None
    assert imported(data, file) == 1
    assert set(folder.rows) == {note.id for note in NOTES[:3]}


def test_an_import_interrupted_by_ctrl_c_can_continue(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, *[NOTES[0]] * 512, NOTES[1])
    folder.breaks_after, folder.breaks_with = 1, KeyboardInterrupt
    assert imported(data, file) == 130
    folder.breaks_after = None
    assert imported(data, file) == 0
    assert folder.batches == [512, 1]
    assert notes_in(data) == []


def test_a_changed_file_is_imported_from_the_start(
    folder: FakeFolder, data: Path, file: Path
) -> None:
    write(file, *[NOTES[0]] * 512, NOTES[1])
    folder.breaks_after = 1
    imported(data, file)
    write(file, *[NOTES[0]] * 512, NOTES[1], NOTES[2])
    folder.breaks_after = None
    assert imported(data, file) == 0
    assert folder.batches == [512, 512, 2]


def test_another_origin_starts_the_import_over(folder: FakeFolder, data: Path, file: Path) -> None:
    write(file, *[STRANGE] * 512, NOTES[1])
    folder.breaks_after = 1
    imported(data, file)
    folder.breaks_after = None
    assert imported(data, file, "--trust") == 0
    assert list(folder.rows) == [STRANGE.id, NOTES[1].id]


@pytest.mark.parametrize("content", [b"", b"{", b'{"origin":"IMPORT","offset":-4,"line":0}'])
def test_an_unreadable_progress_file_is_ignored(
    folder: FakeFolder, data: Path, file: Path, content: bytes
) -> None:
    write(file, *[NOTES[0]] * 512, NOTES[1])
    folder.breaks_after = 1
    imported(data, file)
    (data / notes_in(data)[0]).write_bytes(content)
    folder.breaks_after = None
    assert imported(data, file) == 0
    assert folder.batches == [512, 512, 1]


ARTICLE = alice.sign(30_023, [["d", "tea"]], "", NOW + 3)
MESSAGE = alice.sign(9, [["h", "tea"]], "milk?", NOW + 2)
TO_MESSAGE = bob.sign(1111, [["E", MESSAGE.id], ["e", MESSAGE.id]], "yes", NOW + 1)
TO_COMMENT = bob.sign(7, [["e", TO_MESSAGE.id]], "+", NOW)
TO_ARTICLE = bob.sign(1111, [["A", f"30023:{alice.pubkey}:tea"]], "good", NOW)


def test_what_names_a_later_line_is_stored_after_all_others(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until then a running relay would show everybody a comment on a message of a private group."""
    deletion = alice.sign(5, [["e", NOTES[1].id]], "", NOW)
    reply = bob.sign(9, [["h", "tea"], ["e", MESSAGE.id]], "me too", NOW)
    early = [TO_COMMENT, TO_MESSAGE, TO_ARTICLE]
    late = bob.sign(7, [["e", MESSAGE.id]], "+", NOW)
    older = alice.sign(30_023, [["d", "pot"], ["e", MESSAGE.id]], "a version", NOW)
    others = [deletion, NOTES[0], reply, older, MESSAGE, ARTICLE, late, NOTES[1]]
    write(file, *early, b"{", *others)
    assert imported(data, file) == 1
    stored = [*others, TO_MESSAGE, TO_ARTICLE, TO_COMMENT]
    assert list(folder.rows) == [event.id for event in stored]
    assert capsys.readouterr().out == "12 read, 11 stored, 0 duplicates, 1 refused\n"


def test_so_is_what_comes_after_more_names_than_are_kept(
    monkeypatch: pytest.MonkeyPatch, folder: FakeFolder, data: Path, file: Path
) -> None:
    monkeypatch.setattr(import_lines, "_MAX_WAITING", 1)
    after = bob.sign(7, [["e", NOTES[0].id]], "+", NOW)
    write(file, TO_MESSAGE, after, TO_ARTICLE, NOTES[0])
    assert imported(data, file) == 0
    assert list(folder.rows) == [each.id for each in (TO_MESSAGE, NOTES[0], after, TO_ARTICLE)]


def test_a_long_chain_of_such_lines_is_stored_whole(
    folder: FakeFolder, data: Path, file: Path
) -> None:
    chain = [MESSAGE]
    for number in range(12):
        chain.insert(0, bob.sign(7, [["e", chain[0].id]], str(number), NOW))
    write(file, *chain)
    assert imported(data, file) == 0
    assert folder.batches == [1, 1, 1, 1, 1, 1, 1, 1, 5]
    assert list(folder.rows)[:8] == [event.id for event in chain[:4:-1]]
    assert folder.rows.keys() == {event.id for event in chain}


def test_an_import_that_stopped_before_those_stores_them_when_it_is_repeated(
    folder: FakeFolder, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, TO_MESSAGE, MESSAGE)
    folder.breaks_after = 1
    assert imported(data, file) == 1
    assert list(folder.rows) == [MESSAGE.id]
    folder.breaks_after = None
    capsys.readouterr()
    assert imported(data, file) == 0
    assert list(folder.rows) == [MESSAGE.id, TO_MESSAGE.id]
    assert capsys.readouterr().out == "2 read, 2 stored, 0 duplicates, 0 refused\n"
    assert notes_in(data) == []


# -- import: our own faults -----------------------------------------------------------------------


async def _import(folder: FakeFolder, *events: Event) -> tuple[Place, list[str]]:
    place = Place()
    said: list[str] = []
    await import_events(
        folder,
        io.BytesIO(lines_of(*events)),
        "F",
        Origin.IMPORT,
        place,
        report=said.append,
        note=lambda _: None,
        pauses_s=(0, 0),
    )
    return place, said


async def test_temporary_refusals_are_retried(folder: FakeFolder) -> None:
    tries: dict[str, int] = {}

    def at_first(event: Event) -> str | None:
        tries[event.id] = tries.get(event.id, 0) + 1
        is_early = tries[event.id] < 3 and event.id != NOTES[0].id
        return "error: disk full" if is_early else None

    folder.fails = at_first
    place, said = await _import(folder, *NOTES[:3])
    assert (place.tally.stored, place.tally.refused, said) == (3, 0, [])
    assert folder.batches == [3, 1, 1, 1, 1, 1]


async def test_one_event_that_always_fails_does_not_stop_the_others(folder: FakeFolder) -> None:
    folder.fails = lambda event: "error: our fault" if event.id == NOTES[1].id else None
    place, said = await _import(folder, *NOTES)
    assert (place.tally.stored, place.tally.refused) == (7, 1)
    assert said == [f"F:2: error: our fault (id {NOTES[1].id})"]


@pytest.mark.parametrize("kind", [9000, 5, 62])
async def test_nothing_is_stored_after_an_event_on_rights_that_was_not(
    folder: FakeFolder, kind: int
) -> None:
    """A 9000 that a repeated import stored after its 9001 made the removed key a member."""
    change = alice.sign(kind, [["h", "tea"]], "", NOW)
    folder.fails = lambda event: "error: our fault" if event.id == change.id else None
    with pytest.raises(StoreFault, match=f"error: our fault .id {change.id}"):
        await _import(folder, NOTES[0], change, *NOTES[1:])
    assert [*folder.rows] == [NOTES[0].id]


@pytest.mark.parametrize(
    ("why", "number"), [("error: our fault", 3), ("rate-limited: slow down", 1)]
)
async def test_what_a_later_line_deletes_is_not_stored_after_it(
    folder: FakeFolder, why: str, number: int
) -> None:
    tries = 0

    def at_first(event: Event) -> str | None:
        nonlocal tries
        tries += event.id == NOTES[1].id
        return why if event.id == NOTES[1].id and tries <= number else None

    folder.fails = at_first
    deletion = alice.sign(9005, [["h", "tea"], ["e", NOTES[1].id]], "", NOW)
    with suppress(StoreFault):
        await _import(folder, NOTES[0], NOTES[1], deletion)
    assert NOTES[1].id not in folder.rows


@pytest.mark.parametrize("later", [NOTES[:1], NOTES[:2], []])
async def test_an_event_is_not_given_up_unless_another_could_be_stored(
    folder: FakeFolder, later: list[Event]
) -> None:
    """What others could be: those that are stored already say nothing about the disk."""
    folder.rows = {NOTES[0].id: NOTES[0]}
    folder.fails = lambda _: "error: disk full"
    with pytest.raises(StoreFault, match="error: disk full"):
        await _import(folder, NOTES[2], *later)
    assert [*folder.rows] == [NOTES[0].id]


async def test_an_event_that_failed_with_the_disk_is_stored_when_another_could_be(
    folder: FakeFolder,
) -> None:
    tries = 0

    def at_first(event: Event) -> str | None:
        nonlocal tries
        tries += event.id == NOTES[1].id
        return "error: disk full" if event.id == NOTES[1].id and tries <= 3 else None

    folder.fails = at_first
    place, said = await _import(folder, *NOTES)
    assert (place.tally.stored, said, folder.batches[:5]) == (8, [], [8, 1, 1, 1, 1])


async def test_a_long_wait_is_explained(
    folder: FakeFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("relay.cli.importing._LONG_S", 0)
    faults = iter(["error: disk full"])
    folder.fails = lambda _: next(faults, None)
    await _import(folder, *NOTES)
    assert capsys.readouterr().err == "error: disk full; trying again in 0 s\n"


async def test_what_follows_a_record_that_was_refused_for_now_is_stored_after_it(
    folder: FakeFolder,
) -> None:
    """Else a member whose removal is in the file would be put in after it."""
    removal = alice.sign(9001, [["h", "tea"]], "", NOW)
    tries = 0

    def at_first(event: Event) -> str | None:
        nonlocal tries
        tries += event.id == NOTES[1].id
        return "error: disk I/O error" if event.id == NOTES[1].id and tries < 3 else None

    folder.fails = at_first
    await _import(folder, NOTES[0], NOTES[1], removal, NOTES[2])
    assert [*folder.rows] == [NOTES[0].id, NOTES[1].id, removal.id, NOTES[2].id]


async def test_a_full_quota_does_not_stop_an_import(
    monkeypatch: pytest.MonkeyPatch, folder: FakeFolder
) -> None:
    """It stopped at the first batch that was over it as a whole, and so did each repetition."""
    monkeypatch.setattr(import_lines, "_BATCH_EVENTS", 2)
    full = {event.id for event in NOTES[:5]}
    folder.fails = lambda event: "rate-limited: full" if event.id in full else None
    place, said = await _import(folder, *NOTES)
    assert folder.batches == [2, 2, 2, 2], "nor is it waited for"
    assert (place.tally.stored, place.tally.refused, len(said)) == (3, 5, 5)


async def test_a_group_record_over_a_quota_is_not_stored_after_later_ones(
    folder: FakeFolder,
) -> None:
    removal = alice.sign(9001, [["h", "tea"]], "", NOW)
    limited = iter([removal.id])
    folder.fails = lambda event: "rate-limited: full" if event.id == next(limited, None) else None
    place, said = await _import(folder, removal, NOTES[0])
    assert said == [f"F:1: rate-limited: full (id {removal.id})"]
    assert (place.tally.stored, [*folder.rows]) == (1, [NOTES[0].id])


def test_where_an_import_was_it_knows_which_groups_are_others_here(tmp_path: Path) -> None:
    file = tmp_path / "F"
    file.write_bytes(b"{}")
    with file.open("rb") as source:
        progress = ImportProgress.of(tmp_path, source, file, Origin.IMPORT)
    assert progress is not None
    progress.write(Place(other_groups={"den"}))
    assert progress.read().other_groups == {"den"}


DEN = alice.sign(9007, [["h", "den"]], "", NOW)
IN_DEN = [alice.sign(9, [["h", "den"]], f"secret {number}", NOW) for number in range(3)]
OTHER_DEN = bob.sign(9007, [["h", "den"]], "", NOW)
FILLERS = [alice.sign(1, [], f"note {number}", NOW) for number in range(511)]
"""With one more event, a batch."""


async def test_a_group_whose_9007_was_refused_may_be_made_by_others_without_its_messages(
    folder: FakeFolder,
) -> None:
    """Whether it was here had been asked once, before the 9007."""
    folder.fails = lambda event: "restricted: makes no groups" if event.id == DEN.id else None

    def made_meanwhile(_: Place) -> None:
        folder.rows[OTHER_DEN.id] = OTHER_DEN

    place, said = Place(), list[str]()
    await import_events(
        folder,
        io.BytesIO(lines_of(DEN, *FILLERS, *IN_DEN)),
        "F",
        Origin.IMPORT,
        place,
        report=said.append,
        note=made_meanwhile,
    )
    assert place.other_groups == {"den"}
    assert [line for line in said if "is another one, or there is none" in line] == said[1:]
    assert not folder.rows.keys() & {event.id for event in IN_DEN}
    assert (place.tally.stored, place.tally.refused) == (511, 4)


@pytest.mark.parametrize("is_made_meanwhile", [True, False])
def test_no_message_is_stored_before_the_9007_of_its_group(
    folder: FakeFolder, data: Path, file: Path, *, is_made_meanwhile: bool
) -> None:
    """Anybody might make the group before."""

    def taken(_: Event) -> None:
        if is_made_meanwhile:
            folder.rows[OTHER_DEN.id] = OTHER_DEN

    folder.fails = taken
    write(file, FILLERS[0], IN_DEN[0], *FILLERS[1:], DEN, IN_DEN[1])
    assert imported(data, file) == 1
    stored = [event.id for event in IN_DEN if event.id in folder.rows]
    assert stored == ([] if is_made_meanwhile else [IN_DEN[1].id])


async def test_a_second_9007_that_is_refused_keeps_no_messages_out(folder: FakeFolder) -> None:
    folder.fails = lambda event: "duplicate: it exists" if event.id == OTHER_DEN.id else None
    place, _ = await _import(folder, DEN, OTHER_DEN, IN_DEN[0], *FILLERS, *IN_DEN[1:])
    assert folder.rows.keys() >= {event.id for event in IN_DEN}
    assert place.other_groups == set()


async def test_a_failing_store_stops_the_import(folder: FakeFolder) -> None:
    folder.fails = lambda _: "error: disk full"
    place = Place()
    with pytest.raises(StoreFault, match="error: disk full"):
        await import_events(
            folder,
            io.BytesIO(lines_of(*NOTES)),
            "F",
            Origin.IMPORT,
            place,
            report=pytest.fail,
            note=lambda _: pytest.fail("noted"),
            pauses_s=(0,),
        )
    assert place == Place()


async def test_a_file_of_invalid_lines_is_read_in_batches(folder: FakeFolder) -> None:
    places: list[int] = []
    await import_events(
        folder,
        io.BytesIO(b"{\n" * 10_000),
        "F",
        Origin.IMPORT,
        Place(),
        report=lambda _: None,
        note=lambda place: places.append(place.line),
    )
    assert places == [4096, 8192, 10_000]
    assert folder.batches == []


def test_a_place_that_cannot_be_noted_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(part: Path, _: Path) -> None:
        assert part.exists()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        ImportProgress(tmp_path / "import-1.resume", 9, Origin.IMPORT).write(Place())
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_wait_for_a_line() -> None:
    """asyncio's handler only cancels the task, which waited on for a producer that hangs."""

    class Silent(io.BytesIO):
        def readline(self, _: int | None = -1) -> bytes:
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it waits on")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(
            import_events(
                FakeFolder(),
                Silent(),
                "F",
                Origin.IMPORT,
                Place(),
                report=pytest.fail,
                note=lambda _: pytest.fail("noted"),
            )
        )
    assert signal.getsignal(signal.SIGINT) is before


def test_a_read_in_the_background_does_not_end_by_ctrl_c() -> None:
    """SIGINT is ignored there."""

    class Noisy(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            signal.raise_signal(signal.SIGINT)
            return super().readline(size)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        batch = batch_of(Noisy(b"{\n"), Place())
    finally:
        signal.signal(signal.SIGINT, before)
    assert batch is not None
    assert batch.line == 1
