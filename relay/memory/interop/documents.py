"""Markdown files and JSON documents of other tools, and what form a document has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from relay.errors import Invalid
from relay.memory.interop.claude_mem import TABLES, records_in
from relay.memory.interop.exported import is_exported, record_in, signed_item
from relay.memory.interop.front_matter import front_matter_in, with_front_matter
from relay.memory.interop.records import Fault, Form, note, time_of
from relay.nostr.event import event_from

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from relay.memory.interop.front_matter import FrontMatter
    from relay.memory.interop.records import Parsed
    from relay.memory.secrets import SecretFilter

_MODIFIED: Final = ("modified", "updated", "updated_at", "last_modified", "lastmod")
_CREATED: Final = ("created", "created_at", "date")
_MEM0_BLOCK: Final = ("id", "created_at", "type", "confidence", "branch", "files", "categories")
"""Fields of each memory in a markdown file of mem0's plugin."""
_MEM0_FIELDS: Final = (
    "user_id", "agent_id", "app_id", "run_id", "actor_id", "role", "attributed_to",
    "expiration_date", "categories", "metadata", "type",
)  # fmt: skip
_MOST_VALUES: Final = 5_000_000
"""Commas and opening brackets of a JSON file: each may be a value that takes 100 bytes of memory,
of two or three in the file."""
_RULE: Final = re.compile(r"^---[ \t]*\r?(?:\n|\Z)", re.MULTILINE)


class Reader(NamedTuple):
    """The keys of the importing user, and the secret filter."""

    own: Container[str]
    """Public keys, 64 hex."""
    secrets: SecretFilter | None = None
    """For records of nmem; None keeps texts as they are."""


# -- markdown -------------------------------------------------------------------------------------


def form_of_markdown(text: str) -> Form:
    """The form of one file, by its front matter."""
    if is_exported(text):
        return Form.ROOKERY
    head = front_matter_in(text)
    if set(_MEM0_BLOCK) <= head.fields.keys():
        return Form.MEM0
    if head.text("d_tag") and "visibility" in head.fields:
        return Form.NOMEN
    return Form.BASIC_MEMORY if head.text("permalink") else Form.MARKDOWN


def markdown_in(text: str, path: str, form: Form, reader: Reader) -> Iterator[Parsed]:
    """The notes of one file. `path`: below the imported folder, with `/`."""
    if is_exported(text):
        yield record_in(text, path, reader.own)
    elif form is Form.MEM0:
        yield from _mem0_blocks(text, path)
    elif form is Form.NOMEN:
        yield _note(form, text, path, ("d_tag",), form_names="d_tag")
    elif form in (Form.MARKDOWN, Form.BASIC_MEMORY):
        yield _note(form, text, path, ("permalink", "id"))
    else:
        yield Fault(path, f"is no file of {form}")


def _note(form: Form, text: str, path: str, ids: tuple[str, ...], form_names: str = "") -> Parsed:
    text = text.removeprefix("\ufeff")
    head = front_matter_in(text)
    named = head.first(*ids)
    if form_names and not named:
        return Fault(f"{path}:1", f"{form_names}: missing from the front matter")
    at = _time_in(head, path)
    if isinstance(at, Fault):
        return at
    key = head.text(named) if named else path.rpartition(".")[0]
    return note(form, key, text, at, f"{path}:{head.fields[named].line if named else 1}")


def _time_in(head: FrontMatter, path: str) -> int | Fault | None:
    """Unix seconds of the last change, else of the creation; None: not named."""
    named = head.first(*_MODIFIED, *_CREATED)
    if not named:
        return None
    value = head.fields[named]
    at = time_of(value.text)
    if at is None:
        return Fault(f"{path}:{value.line}", f"{named} must be an ISO 8601 date or date-time")
    return at


def _mem0_blocks(text: str, path: str) -> Iterator[Parsed]:
    first, *parts = _RULE.split(text.removeprefix("\ufeff"))
    line = 1 + first.count("\n")
    blocks: list[tuple[str, FrontMatter, list[str]]] = []
    for part in parts:
        head = front_matter_in(f"---\n{part}---\n")
        if set(_MEM0_BLOCK) <= head.fields.keys():
            blocks.append((f"{path}:{line}", head, []))
        elif blocks:
            blocks[-1][2].append(part)
        line += 1 + part.count("\n")
    for where, head, texts in blocks:
        at = _time_in(head, path)
        if isinstance(at, Fault):
            yield Fault(where, at.why)
            continue
        kept = {name: head.text(name) for name in head.fields if name not in ("id", "created_at")}
        yield _mem0(head.text("id"), "---\n".join(texts).strip(), kept, at, where)
    if not blocks:
        yield Fault(f"{path}:1", f"has no front matter with {', '.join(_MEM0_BLOCK)}")


# -- JSON -----------------------------------------------------------------------------------------


class Document(NamedTuple):
    form: Form
    records: Iterator[Parsed]
    remark: str = ""
    """What the user should know of the whole."""


def json_in(data: bytes, name: str, form: Form | None, reader: Reader) -> Document:
    """A JSON document, or one JSON value per line. `form`: None: detected. Raises Invalid if it is
    of no known form, or has too many values."""
    if sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise Invalid(f"{name}: over {_MOST_VALUES:,} values: import it in parts")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        lines = _lines_in(data, name)
        if lines is None:
            raise Invalid(f"{name}:{error.lineno}: is not JSON: {error.msg}") from None
        return _listed(lines, name, form, reader)
    if isinstance(value, list):
        places = [(f"{name}: [{index}]", each) for index, each in enumerate(value)]
        return _listed(places, name, form, reader)
    found: dict[str, Any] = value if isinstance(value, dict) else {}
    remark = ""
    for key, means in (("results", Form.MEM0), ("memories", Form.NOMEN)):
        if isinstance(rows := found.get(key), list) and form in (None, means):
            if found.get("next"):
                remark = "this is one page of several: `next` names another, which is not read"
            places = [(f"{name}: {key}[{index}]", each) for index, each in enumerate(rows)]
            return _listed(places, name, means, reader)._replace(remark=remark)
    if form in (None, Form.CLAUDE_MEM):
        tables = {
            each: found[each] for each in TABLES.values() if isinstance(found.get(each), list)
        }
        if tables:
            return Document(Form.CLAUDE_MEM, records_in(tables, name, reader.secrets))
    if found:
        return _listed([(f"{name}:1", found)], name, form, reader)
    raise _unknown(name, form)


def _lines_in(data: bytes, name: str) -> list[tuple[str, object]] | None:
    """(place, value or error) of each line that is not blank; None if the first is not JSON."""
    places: list[tuple[str, object]] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            places.append((f"{name}:{number}", orjson.loads(line)))
        except orjson.JSONDecodeError as error:
            if not places:
                return None
            places.append((f"{name}:{number}", error))
    return places


def _listed(
    places: Sequence[tuple[str, object]], name: str, form: Form | None, reader: Reader
) -> Document:
    first = next((value for _, value in places if isinstance(value, dict)), {})
    found = form
    if found is None:
        for each, fields in _MARKS.items():
            if fields <= first.keys():
                found = each
                break
    if found not in _READ:
        raise _unknown(name, form)
    return Document(found, _each(places, _READ[found]))


def _each(
    places: Sequence[tuple[str, object]], read: Callable[[Mapping[str, Any], str], Parsed]
) -> Iterator[Parsed]:
    for where, value in places:
        if isinstance(value, dict):
            yield read(value, where)
        elif isinstance(value, orjson.JSONDecodeError):
            yield Fault(where, f"is not JSON: {value.msg}")
        else:
            yield Fault(where, "must be a JSON object")


def _unknown(name: str, form: Form | None) -> Invalid:
    return Invalid(
        f"{name}: is no export of {form or 'a known tool'}: mem0's has `results` with `id` and"
        " `memory`, claude-mem's `observations`, nomen's `memories` with `d_tag`, Rookery's one"
        " event per line"
    )


def _event_in(fields: Mapping[str, Any], where: str) -> Parsed:
    try:
        return signed_item(event_from(fields), where)
    except Invalid as invalid:
        return Fault(where, invalid.text)


def _mem0_item(fields: Mapping[str, Any], where: str) -> Parsed:
    text, id_ = fields.get("memory"), fields.get("id")
    for name, value in (("memory", text), ("id", id_)):
        if not isinstance(value, str):
            return Fault(where, f"{name} must be a string")
    at = _time_of(fields, where)
    if isinstance(at, Fault):
        return at
    kept = {name: fields[name] for name in _MEM0_FIELDS if fields.get(name)}
    return _mem0(str(id_), str(text), kept, at, where)


def _mem0(id_: str, text: str, fields: Mapping[str, object], at: int | None, where: str) -> Parsed:
    if not text.strip():
        return Fault(where, "it has no text", is_error=False)
    return _noted(Form.MEM0, id_, fields, text, at, where)


def _noted(
    form: Form, id_: str, fields: Mapping[str, object], text: str, at: int | None, where: str
) -> Parsed:
    try:
        return note(form, id_, with_front_matter(fields, text), at, where)
    except TypeError:
        why = "one is nested too deeply, or holds half a character"
        return Fault(where, f"{', '.join(fields)}: {why}")


def _nomen_item(fields: Mapping[str, Any], where: str) -> Parsed:
    for name in ("d_tag", "content"):
        if not isinstance(fields.get(name), str):
            return Fault(where, f"{name} must be a string")
    if not fields["content"].strip():
        return Fault(where, "it has no text", is_error=False)
    at = _time_of(fields, where)
    if isinstance(at, Fault):
        return at
    kept = {name: fields.get(name) for name in ("d_tag", "topic", "visibility", "scope", "version")}
    return _noted(Form.NOMEN, fields["d_tag"], kept, fields["content"], at, where)


def _time_of(fields: Mapping[str, Any], where: str) -> int | Fault | None:
    name = next((each for each in ("updated_at", "created_at") if fields.get(each)), None)
    if name is None:
        return None
    at = time_of(fields[name])
    return Fault(where, f"{name} must be an ISO 8601 date-time") if at is None else at


_MARKS: Final = {
    Form.ROOKERY: {"id", "pubkey", "kind", "sig"},
    Form.MEM0: {"id", "memory"},
    Form.NOMEN: {"d_tag", "content"},
}
"""Form → the fields by which it is known."""
_READ: Final = {Form.ROOKERY: _event_in, Form.MEM0: _mem0_item, Form.NOMEN: _nomen_item}
