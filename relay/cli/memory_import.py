"""`rookery memory import`: memories of other tools, and exported ones, become records here."""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from relay.cli.connect import with_settings
from relay.cli.humanize import counted
from relay.cli.options import (
    Server,
    anyway_option,
    client_options,
    print_json,
    printable,
)
from relay.cli.progress import Amount, progress_bar
from relay.client.claude_mem import MAX_RECORDS, tables_of
from relay.client.information import limit_in, reads_prefixes
from relay.client.nmem.settings import find_nmem_settings
from relay.client.settings import Actor
from relay.errors import Invalid, Prefix, UserError
from relay.files import opened_below
from relay.lifecycle.rows import Keep, version_of
from relay.memory.interop.claude_mem import records_in
from relay.memory.interop.documents import (
    Document,
    Reader,
    form_of_markdown,
    json_in,
    markdown_in,
)
from relay.memory.interop.records import Fault, Form, Item, Note, Recorded, Sifter, draft_of
from relay.memory.junk import Sieve
from relay.memory.nmem.checks import SESSION
from relay.memory.registry import RecordName
from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_in
from relay.memory.snowclaw.keys import AGENT
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.event import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.progress import Progress, TaskID

    from relay.client import Client
    from relay.client.client import PublishReport
    from relay.client.settings import ClientSettings
    from relay.memory.interop.records import Parsed
    from relay.nostr.keys import SecretKey

_SQLITE: Final = b"SQLite format 3\0"
_MAX_DOCUMENT: Final = 128 << 20
"""Bytes of a JSON document."""
_MAX_NOTE: Final = 1 << 20
"""Bytes of a markdown file in a folder."""
_MAX_FOLDER: Final = 256 << 20
_MAX_DEPTH: Final = 32
_MAX_TOLD: Final = 50
_IDS: Final = 100
"""Ids in one filter."""
_MAX_MESSAGE: Final = 131_072
"""Bytes of a message, for a relay that names no limit."""
_SAME: Final = "stored already"
_NEWER: Final = "a newer version is stored"
_DELETED: Final = "it was deleted here"
_KEEP_FIRST: Final = (kinds.APP_RECORD, kinds.TOOL_HISTORY, kinds.CLEAR_CONTEXT)
_BY_TS: Final = (kinds.PREFERENCE, kinds.SUMMARY, kinds.SUBSCRIPTION_STATE)
_NOT_EXPORTED: Final = "the text was changed, and what is stored is not what was exported"
_MARKDOWN: Final = (".md", ".markdown")


@dataclass(slots=True)
class _Import:
    """Records found in the files, and their outcomes."""

    forms: Counter[Form] = field(default_factory=Counter)
    """Records read, by form."""
    items: list[Item] = field(default_factory=list)
    left_out: list[Fault] = field(default_factory=list)
    """Records that were left out, although they have no error."""
    faults: list[Fault] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    events: dict[str, tuple[str, Event]] = field(default_factory=dict)
    """id → (place, event) to be stored."""
    replacing: dict[str, str] = field(default_factory=dict)
    """id → place, of those that replace a stored version."""
    counts: Counter[str] = field(default_factory=Counter)

    def take(self, records: Iterable[Parsed], form: Form) -> None:
        for record in records:
            self.forms[form] += 1
            if isinstance(record, Item):
                self.items.append(record)
            elif record.is_error:
                self.faults.append(record)
            else:
                self.left_out.append(record)
            if len(self.items) + len(self.faults) + len(self.left_out) > MAX_RECORDS:
                raise UserError(f"more than {MAX_RECORDS} records: import them in parts")


@click.command("import", epilog="Example: rookery memory import ~/notes --dry-run")
@click.argument("path", type=click.Path(exists=True, path_type=Path), metavar="PATH")
@click.option(
    "--from",
    "form",
    type=click.Choice([form.value for form in Form]),
    help="Program that wrote the files; default: detected.",
)
@click.option("--dry-run", is_flag=True, help="Only list the records that would be stored.")
@anyway_option
@client_options
def import_(
    path: Path, form: str | None, server: Server, *, dry_run: bool, anyway: bool, as_json: bool
) -> int:
    """Store the memories of claude-mem, basic-memory, mem0, nomen or a folder of markdown.

    PATH is a folder of markdown, a JSON or JSONL export, or the database of claude-mem. Importing
    it again stores nothing twice. Signs as the agent.
    """

    async def work(client: Client, settings: ClientSettings) -> _Import:
        _, nmem = find_nmem_settings(Path.home())
        keys = settings.own_keys()
        reader = Reader(keys, None if anyway else nmem.secret_filter())
        done = _Import()
        done.counts.update({"would store" if dry_run else "stored": 0, "unchanged": 0})
        times = _read(path, None if form is None else Form(form), reader, done)
        stored = await _stored_notes(client, done.items, keys)
        _sift(done, None if anyway else Sieve(), stored.values())
        stored |= await _stored_sessions(client, done.items, next(iter(keys)))
        document = await client.information_or_empty()
        limit = limit_in(document, "max_message_length") or _MAX_MESSAGE
        _sign(done, keys, stored, times, client.now(), limit)
        if dry_run:
            await _leave_out_stored(client, done)
            done.counts["would store"] = len(done.events)
        else:
            await _publish(client, done)
        return done

    done = with_settings(Actor.AGENT, server, work)
    _report(done, is_dry=dry_run, as_json=as_json)
    return 1 if done.faults else 0


# -- files ----------------------------------------------------------------------------------------


def _read(path: Path, form: Form | None, reader: Reader, done: _Import) -> Mapping[str, int]:
    """Place of a note → when its file was changed, for notes that do not say. Raises UserError."""
    if path.is_dir():
        return _read_folder(path, form, reader, done)
    data = _bytes_of(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), _MAX_DOCUMENT)
    name = path.name
    try:
        if data == _SQLITE:
            document = Document(Form.CLAUDE_MEM, _rows_of(path, form, reader))
        elif path.suffix.lower() in _MARKDOWN:
            text = data.decode()
            of_file = form or form_of_markdown(text)
            document = Document(of_file, markdown_in(text, name, of_file, reader))
        else:
            document = json_in(data, name, form, reader)
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: byte {error.start} is not UTF-8") from None
    except Invalid as invalid:
        raise UserError(printable(invalid.text)) from None
    done.take(document.records, document.form)
    done.remarks += filter(None, [document.remark])
    return dict.fromkeys([item.where for item in done.items], int(path.stat().st_mtime))


def _read_folder(root: Path, form: Form | None, reader: Reader, done: _Import) -> Mapping[str, int]:
    """Only regular files below the folder: symbolic links are not followed."""
    times: dict[str, int] = {}
    texts: dict[str, str] = {}
    total = others = 0
    for name in _files_below(root, done):
        if not name.lower().endswith(_MARKDOWN):
            others += 1
            continue
        try:
            fd = opened_below(root, name)
            changed = int(os.fstat(fd).st_mtime)
            data = _bytes_of(root / name, fd, _MAX_NOTE)
            texts[name], times[name] = data.decode(), changed
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            done.faults.append(Fault(f"{name}:{line}", f"byte {error.start} is not UTF-8"))
        except (OSError, UserError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            done.faults.append(Fault(name, str(why)))
        else:
            total += len(data)
        if total > _MAX_FOLDER:
            raise UserError(f"{root}: more than {_MAX_FOLDER >> 20} MiB: import it in parts")
    found = {name: form_of_markdown(text) for name, text in texts.items()}
    # Not every note of basic-memory has a permalink, but some of a folder have.
    plain = Form.BASIC_MEMORY if Form.BASIC_MEMORY in found.values() else Form.MARKDOWN
    for name, text in texts.items():
        of_file = found[name] if form is None else form
        if form is None and of_file in (Form.BASIC_MEMORY, Form.MARKDOWN):
            of_file = plain
        already = len(done.items)
        done.take(markdown_in(text, name, of_file, reader), of_file)
        times |= dict.fromkeys([item.where for item in done.items[already:]], times[name])
    if others:
        done.remarks.append(
            f"not read: {counted(others, 'file')} of another type than .md and .markdown"
        )
    if not texts and not done.faults:
        raise UserError(f"{root}: there is no .md file in it")
    return times


def _files_below(root: Path, done: _Import) -> list[str]:
    """Relative, with `/`, sorted; without hidden files and folders."""
    found: list[str] = []
    folders = [("", 0)]
    while folders:
        below, depth = folders.pop()
        try:
            entries = _listed(root, below)
        except OSError as error:
            done.faults.append(Fault(below, str(error.strerror)))
            continue
        for entry, mode in entries:
            name = f"{below}{entry}"
            if entry.startswith("."):
                continue
            if not _is_text(name):
                done.faults.append(Fault(printable(name), "its name is not UTF-8"))
            elif stat.S_ISLNK(mode):
                done.left_out.append(Fault(name, "a symbolic link, not followed"))
            elif stat.S_ISDIR(mode):
                if depth == _MAX_DEPTH:
                    done.faults.append(Fault(name, f"over {_MAX_DEPTH} folders deep"))
                else:
                    folders.append((f"{name}/", depth + 1))
            elif stat.S_ISREG(mode):
                found.append(name)
            if len(found) > MAX_RECORDS:
                raise UserError(f"{root}: more than {MAX_RECORDS} files: import it in parts")
    return sorted(found)


def _listed(root: Path, below: str) -> list[tuple[str, int]]:
    """Names in a folder and what they are, as the type in a mode. Raises OSError."""
    fd = opened_below(root, below)
    try:
        return [(each.name, _type_of(each)) for each in os.scandir(fd)]
    finally:
        os.close(fd)


def _type_of(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes_of(path: Path, fd: int, limit: int) -> bytes:
    """The content of a file; of an SQLite database only the first bytes. Closes `fd`. Raises
    UserError, OSError."""
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise UserError(f"{path.name} is no file")
        head = file.read(len(_SQLITE))
        if head == _SQLITE:
            return head
        if about.st_size > limit:
            raise UserError(f"{path.name}: over {limit >> 20} MiB")
        return head + file.read(limit)


def _rows_of(path: Path, form: Form | None, reader: Reader) -> Iterator[Parsed]:
    """The tables of claude-mem. Raises Invalid, UserError."""
    if form not in (None, Form.CLAUDE_MEM):
        raise Invalid(f"{path.name} is a SQLite database: only claude-mem's is read")
    try:
        tables = tables_of(path)
    except UserError as error:
        raise UserError(printable(str(error))) from None
    return records_in(tables, path.name, reader.secrets)


# -- records --------------------------------------------------------------------------------------


async def _stored_notes(
    client: Client, items: Iterable[Item], authors: Iterable[str]
) -> dict[tuple[str, str], Event]:
    """(author, `d`) → the stored version, of all categories that the items have."""
    notes = [item.record for item in items if isinstance(item.record, Note)]
    prefixes = sorted({f"{AGENT}{note.memory.category}:" for note in notes})
    if not prefixes:
        return {}
    wanted: dict[str, object] = {"kinds": [kinds.APP_DATA], "authors": sorted(authors)}
    if reads_prefixes(await client.information_or_empty(), kinds.APP_DATA):
        wanted["#d"] = prefixes
    return {(event.pubkey, event.d): event async for event in client.query_all(wanted)}


async def _stored_sessions(
    client: Client, items: Iterable[Item], author: str
) -> dict[tuple[str, str], Event]:
    """As `_stored_notes`: a session may have been recorded here, with the id that it has there."""
    drafts = [draft_of(item.record, 0) for item in items if isinstance(item.record, Recorded)]
    ds = sorted({draft.d for draft in drafts if draft.d.startswith(SESSION)})
    found: list[Event] = []
    for start in range(0, len(ds), _IDS):
        part = ds[start : start + _IDS]
        wanted = {"kinds": [kinds.APP_DATA], "authors": [author], "#d": part}
        found += [event async for event in client.query_all(wanted)]
    return {(event.pubkey, event.d): event for event in found}


def _sift(done: _Import, sieve: Sieve | None, stored: Iterable[Event]) -> None:
    memories = map(agent_memory_in, stored)
    sifter = Sifter(sieve, [known for known in memories if isinstance(known, AgentMemory)])
    items: list[Item] = []
    for item in done.items:
        sifted = sifter.sifted(item)
        if isinstance(sifted, Item):
            items.append(sifted)
        else:
            done.left_out.append(sifted)
    done.items = items


def _sign(
    done: _Import,
    keys: Mapping[str, SecretKey],
    stored: Mapping[tuple[str, str], Event],
    times: Mapping[str, int],
    now: int,
    limit: int,
) -> None:
    """Sign the records. `keys`: by public key; the first one signs everything except edits."""
    own = next(iter(keys))
    for item in done.items:
        edits = item.record.edits if isinstance(item.record, Note) else None
        key = keys[own if edits is None else edits.author]
        event = _event_of(item, key, stored, times.get(item.where, now), now)
        if event is None:
            done.counts["unchanged"] += 1
        elif isinstance(event, Fault):
            (done.faults if event.is_error else done.left_out).append(event)
        elif len(event.raw) + len('["EVENT",]') > limit:
            size = f"{len(event.raw)} bytes: the relay takes {limit}"
            done.faults.append(Fault(item.where, size))
        else:
            done.events[event.id] = item.where, event
            known = stored.get((key.pubkey, event.d))
            is_other = known is not None and known.id != event.id
            if is_other and not isinstance(item.record, Event):
                done.replacing[event.id] = item.where


def _event_of(
    item: Item,
    key: SecretKey,
    stored: Mapping[tuple[str, str], Event],
    changed: int,
    now: int,
) -> Event | Fault | None:
    """None: it is stored already. `changed`: when the file was changed."""
    record = item.record
    if isinstance(record, Event):
        return record
    draft = draft_of(record, changed)
    at = min(draft.created_at, now)
    if isinstance(record, Note):
        known = stored.get((key.pubkey, draft.d))
        if known is not None and known.content == draft.content:
            return None
        if record.edits is not None and (known is None or known.id != record.edits.version):
            return Fault(item.where, _NOT_EXPORTED)
        if known is not None:
            if known.created_at > at and record.edits is None:
                return Fault(item.where, _NEWER, is_error=False)
            at = max(at, known.created_at + 1)  # the source may not say when it changed
    return key.sign(draft.kind, draft.tags, draft.content, at)


async def _leave_out_stored(client: Client, done: _Import) -> None:
    """For a dry run: leave out events that the relay has, or would refuse because of stored
    ones."""
    places = list(done.events.values())
    for start in range(0, len(places), _IDS):
        part = places[start : start + _IDS]
        known = [event async for event in client.query_all(*_about([event for _, event in part]))]
        for where, event in part:
            if (found := _found_for(event, known)) is None:
                continue
            del done.events[event.id]
            done.replacing.pop(event.id, None)
            if found == _SAME:
                done.counts["unchanged"] += 1
            else:
                done.left_out.append(Fault(where, found))


def _about(events: Sequence[Event]) -> list[dict[str, object]]:
    """Filters for the same events, other versions of them, and their deletions."""
    ids, authors = [event.id for event in events], sorted({event.pubkey for event in events})
    versions = {"kinds": sorted({event.kind for event in events}), "authors": authors}
    deletions = {"kinds": [kinds.DELETION], "authors": authors}
    return [
        {"ids": ids},
        {**versions, "#d": sorted({event.d for event in events})},
        {**deletions, "#e": ids},
        {**deletions, "#a": sorted(map(_address, events))},
    ]


def _address(event: Event) -> str:
    return f"{event.kind}:{event.pubkey}:{event.d}"


def _found_for(event: Event, known: Iterable[Event]) -> str | None:
    """The relay's answer to the event because of stored events; None: it would store it."""
    for other in known:
        if other.pubkey != event.pubkey:
            continue
        if other.kind == kinds.DELETION:
            is_later = other.created_at >= event.created_at
            at = other.tag_values("a") if is_later else ()
            if event.id in other.tag_values("e") or _address(event) in at:
                return _DELETED
        elif other.id == event.id:
            return _SAME
        elif (other.kind, other.d) == (event.kind, event.d):
            if event.kind in _KEEP_FIRST:
                return _SAME
            is_by_ts = event.kind in _BY_TS
            keep = Keep.LATEST_TS if is_by_ts else Keep.LATEST
            ids = (other.id, event.id) if is_by_ts else (event.id, other.id)  # NIP-01, A-09
            if (version_of(other, keep), ids[0]) > (version_of(event, keep), ids[1]):
                return _NEWER
    return None


async def _publish(client: Client, done: _Import) -> None:
    events = sorted([event for _, event in done.events.values()], key=lambda e: e.created_at)
    # A supersession or a pin is refused before what it names is stored.
    with progress_bar(Amount.OF_TOTAL) as bar:
        task = bar.add_task("storing", total=len(events))
        for is_second in (False, True):
            part = [event for event in events if _names_others(event) is is_second]
            report = await client.publish_many(_counted(part, bar, task))
            _count(done, report)


def _names_others(event: Event) -> bool:
    references = MEMORY_SYSTEMS.references(event)
    return bool(references.ids or references.names - {RecordName(event.kind, event.d)})


def _counted(events: Iterable[Event], bar: Progress, task: TaskID) -> Iterator[Event]:
    for event in events:
        yield event
        bar.advance(task)


def _count(done: _Import, report: PublishReport) -> None:
    done.counts["stored"] += report.stored
    done.counts["unchanged"] += report.duplicates
    for refusal in report.refused:
        where, _ = done.events[refusal.event.id]
        done.replacing.pop(refusal.event.id, None)
        if refusal.prefix == Prefix.DUPLICATE:
            done.left_out.append(Fault(where, _NEWER))
        elif (refusal.prefix, refusal.text) == (Prefix.BLOCKED, "deleted"):
            done.left_out.append(Fault(where, _DELETED))
        else:
            done.faults.append(Fault(where, str(refusal)))


# -- output ---------------------------------------------------------------------------------------


def _report(done: _Import, *, is_dry: bool, as_json: bool) -> None:
    counts = {
        **done.counts,
        "changed": sum(bool(item.changed) for item in done.items),
        "replaced": len(done.replacing),
        "left out": len(done.left_out),
        "errors": len(done.faults),
    }
    if as_json:
        told = {
            "from": {form.value: count for form, count in done.forms.items()},
            **{name.replace(" ", "_"): count for name, count in counts.items()},
            "why_left_out": _as_json(done.left_out),
            "why_errors": _as_json(done.faults),
            "why_changed": [
                {"where": item.where, "why": why} for item in done.items for why in item.changed
            ],
            "why_replaced": [
                {"where": where, "d": done.events[id_][1].d}
                for id_, where in done.replacing.items()
            ],
        }
        if is_dry:
            told["records"] = [
                {"where": where, "kind": event.kind, "d": event.d, "created_at": event.created_at}
                for where, event in done.events.values()
            ]
        print_json(told)
        return
    for form, count in done.forms.items():
        click.echo(f"read {count} (form: {form})", err=True)
    for remark in done.remarks:
        click.echo(printable(remark), err=True)
    if is_dry:
        for where, event in done.events.values():
            click.echo(printable(f"would store {event.d or event.kind}  ({where})"))
    changed = [f"{item.where}: {why}" for item in done.items for why in item.changed]
    _tell("changed", changed)
    verb = "would replace" if is_dry else "replaced"
    _tell(verb, [f"{done.events[id_][1].d} ({at})" for id_, at in done.replacing.items()])
    _tell("left out", [f"{each.where}: {each.why}" for each in done.left_out])
    _tell("error", [f"{each.where}: {each.why}" for each in done.faults])
    hidden = {"changed"} if counts["replaced"] else {"changed", "replaced"}
    told_of = [f"{name} {count}" for name, count in counts.items() if name not in hidden]
    if counts["changed"]:
        told_of.append(f"{counted(counts['changed'], 'text')} not as in the file")
    click.echo(", ".join(told_of))


def _as_json(faults: Iterable[Fault]) -> list[dict[str, str]]:
    return [{"where": fault.where, "why": fault.why} for fault in faults]


def _tell(what: str, lines: Sequence[str]) -> None:
    for line in lines[:_MAX_TOLD]:
        click.echo(printable(f"{what}: {line}"), err=True)
    if len(lines) > _MAX_TOLD:
        click.echo(f"{what}: {len(lines) - _MAX_TOLD} more; --json names all", err=True)
