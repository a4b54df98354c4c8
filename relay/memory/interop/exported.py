"""A signed record as a markdown file, and back: `rookery memory export --to markdown`.

The first field of the front matter, `rookery`, is the event as JSON. In a file of an own note this
JSON has no content: the file's text, with its own front matter, is the content and may be edited.
In files of other records the event is complete, and the text below it is only for reading. Text by
other keys stands in a fence; their events are compressed, so that a model reads them nowhere else.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.errors import Invalid
from relay.memory.encrypted import may_be_encrypted
from relay.memory.fence import attribution, recalled
from relay.memory.interop.front_matter import FENCE, front_matter_in
from relay.memory.interop.records import Edit, Fault, Item, Note
from relay.memory.snowclaw.agent_memory import AgentMemory
from relay.memory.snowclaw.keys import AGENT, category_and_key
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.event import event_from
from relay.nostr.keys import is_signed

if TYPE_CHECKING:
    from collections.abc import Container

    from relay.memory.interop.records import Parsed
    from relay.nostr.event import Event

RECORD: Final = "rookery: "
AUTHOR: Final = "rookery_author: "
_FIELDS: Final = ("id", "pubkey", "created_at", "kind", "tags", "content", "sig")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]+")
_LONGEST_NAME: Final = 80
_MAX_LINE: Final = 4 << 20
"""Characters of the field `rookery`."""


def file_name(event: Event) -> str:
    """Letters, digits and hyphens of `d`, and 12 hex digits that differ for each record."""
    address = event.d and not _is_regular(event)
    identity = f"{event.kind}:{event.pubkey}:{event.d}" if address else event.id
    words = _UNSAFE.sub("-", event.d)[:_LONGEST_NAME].strip("-").lower()
    return f"{words or event.kind}-{sha256(identity.encode()).hexdigest()[:12]}.md"


def _is_regular(event: Event) -> bool:
    return kinds.class_of(event.kind) is kinds.KindClass.REGULAR


def markdown_of(event: Event, own: Container[str], name: str | None = None) -> str:
    """`own`: public keys of the exporting user. `name`: the author's, from their profile."""
    fields: dict[str, Any] = {field: getattr(event, field) for field in _FIELDS}
    author = ""
    if _is_own_note(event, own):
        del fields["content"]
        text = event.content
    else:
        text = _for_reading(event, own, name)
        fields["text"] = _hash_of(text)
        if event.pubkey not in own:
            author = f"{AUTHOR}{orjson.dumps(attribution(event.pubkey, name)).decode()}\n"
    record = _packed(fields) if author else fields
    head = f"{RECORD}{orjson.dumps(record).decode()}\n{author}"
    if "content" not in fields and _has_block(text):
        opening = FENCE.match(text)
        assert opening is not None
        return f"{opening[0]}{head}{text[opening.end() :]}"
    return f"---\n{head}---\n{text}"


def is_exported(text: str) -> bool:
    opening = FENCE.match(text)
    return opening is not None and text.startswith(RECORD, opening.end())


def record_in(text: str, where: str, own: Container[str]) -> Parsed:
    """The record of a file for which `is_exported` is true. `own`: public keys of the importing
    user; an edited note by one of them becomes a new version."""
    opening = FENCE.match(text)
    assert opening is not None
    line, _, rest = text[opening.end() :].partition("\n")
    where = f"{where}:2"
    try:
        if len(line) > _MAX_LINE:
            raise Invalid(f"over {_MAX_LINE} characters")
        fields = orjson.loads(line.removeprefix(RECORD))
        if isinstance(fields, str):
            fields = orjson.loads(_unpacked(fields))
        if not isinstance(fields, dict):
            raise Invalid("must be a JSON object")
        is_note = "content" not in fields
        if not is_note and rest.startswith(AUTHOR):
            rest = rest.partition("\n")[2]
        closing = FENCE.match(rest)
        body = f"{opening[0]}{rest}" if closing is None else rest[closing.end() :]
        if is_note:
            return _note_in(fields, body, where, own)
        if fields.pop("text", None) != _hash_of(body):
            return Fault(where, "the text was changed since the export: only own notes can be")
        return signed_item(event_from(fields), where)
    except Invalid as invalid:
        return Fault(where, f"rookery: {invalid.text}")
    except orjson.JSONDecodeError as error:
        return Fault(where, f"rookery: is not JSON: {error}")


def _packed(fields: dict[str, Any]) -> str:
    return b64encode(zlib.compress(orjson.dumps(fields))).decode()


def _unpacked(text: str) -> bytes:
    """JSON, of at most `_MAX_LINE` bytes. Raises Invalid."""
    try:
        return zlib.decompressobj().decompress(b64decode(text, validate=True), _MAX_LINE)
    except (ValueError, zlib.error):
        raise Invalid("is no packed event") from None


def signed_item(event: Event, where: str) -> Parsed:
    """A signed event, to be published as it is."""
    if not is_signed(event):
        return Fault(where, "sig: is not the author's signature")
    if not (MEMORY_SYSTEMS.is_memory(event) or event.kind == kinds.NOMEN_MEMORY):
        return Fault(where, f"kind: {event.kind} with this d is no memory record")
    return Item(where, event)


def _note_in(fields: dict[str, Any], body: str, where: str, own: Container[str]) -> Parsed:
    try:
        return signed_item(event_from({**fields, "content": body}), where)
    except Invalid:
        if (author := str(fields.get("pubkey"))) not in own:
            raise Invalid("the text was changed, and only its author can sign it") from None
    match fields.get("tags"):
        case [["d", str(d), *_], *_]:
            category, key = category_and_key(d)
        case _:
            raise Invalid("tags must begin with d")
    edits = Edit(str(fields.get("id")), author)
    return Item(where, Note(AgentMemory(key, body, category), None, edits))


def _is_own_note(event: Event, own: Container[str]) -> bool:
    """Whether the content is a text that its author may edit, in the form of a note."""
    if event.kind != kinds.APP_DATA or event.pubkey not in own or not event.d.startswith(AGENT):
        return False
    try:
        category_and_key(event.d)
    except Invalid:
        return False
    return not may_be_encrypted(event) and event.tag("h") is None


def _has_block(text: str) -> bool:
    """Whether the text has front matter of at least one line."""
    block = text[: len(text) - len(front_matter_in(text).body)]
    return block.rstrip("\r\n").count("\n") > 1


def _for_reading(event: Event, own: Container[str], name: str | None) -> str:
    text = MEMORY_SYSTEMS.search_text(event)
    if text is None:
        text = "(encrypted)" if may_be_encrypted(event) else event.content
    if event.pubkey in own:
        return f"{text.strip()}\n"
    return f"{recalled(text, (str(event.kind), event.d), event.pubkey, '', name, most=None)}\n"


def _hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
