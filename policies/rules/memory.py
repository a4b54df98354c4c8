"""Checks of memory records: the texts and their order stand in MEMORY.md, "bad input" of 2 to 6.

Now here: tags and the shape of `d` of every system, and that content which must be a JSON object
is one. The fields inside it are the next step; a check is one entry of SCHEMAS.
Order (G-03): required tags (asked by the rule that names the check), `d`, content.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final, assert_never

from policies.rules.content import NOT_AN_OBJECT, is_object
from policies.rules.people import ENVELOPES
from policies.settings import AnonymousRead, SchemaMode, System, TsRule, Vouchers
from relay.errors import Invalid, Prefix
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.nostr.keys import public_key
from relay.verdict import Origin, Who
from relay.visibility import Match

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from policies.settings import Memory
    from policies.write_rule import WriteRule
    from relay.nostr.event import Event
    from relay.verdict import Facts
    from relay.visibility import ReadRule

    Check = Callable[[Event, Facts, Memory], str | None]



def schema_fault(
    system: System, event: Event, facts: Facts, memory: Memory
) -> tuple[Prefix, str] | None:
    """What is wrong with a record whose required tags are there; None: nothing."""
    check = SCHEMAS[system][memory.schema_of(system)]
    text = check(event, facts, memory)
    return None if text is None else (Prefix.INVALID, text)


def _nothing(event: Event, facts: Facts, memory: Memory) -> str | None:
    return None


def _number(text: str | None) -> int | None:
    """A whole number from 0 on in plain digits."""
    if text is not None and text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    return None


def _base64(content: str) -> bytes | None:
    try:
        return b64decode(content, validate=True)
    except (NotBase64, ValueError):
        return None


# -- aman: MEMORY.md 2.7 ------------------------------------------------------------------------

_LABELS: Final = {
    kinds.PREFERENCE: "aman_preference",
    kinds.SUMMARY: "aman_summary",
    kinds.TOOL_HISTORY: "aman_tool_history",
    kinds.CLEAR_CONTEXT: "aman_clear_context",
    kinds.SUBSCRIPTION_STATE: "aman_subscription_state",
}
_D_ENDS: Final = {
    kinds.PREFERENCE: "preference",
    kinds.SUMMARY: "summary",
    kinds.SUBSCRIPTION_STATE: "subscription_state",
}
_SECRETBOX_LEAST: Final = 40
"""Nonce and MAC of secretbox-v1 (A-25)."""


def _aman(event: Event, facts: Facts, memory: Memory) -> str | None:
    label = _LABELS.get(event.kind)
    if label is None:  # documents, chunks and policies: only the tags are fixed
        return None
    if event.tag("k") != label:
        return f"tag k must be {label}"
    version = event.tag("v") or ""
    if not version.isascii() or not version.isdigit() or not version.strip("0"):
        return "tag v must be a positive integer"
    ts = _number(event.tag("ts"))
    if ts is None:
        return "tag ts must be unix seconds"
    if facts.origin is Origin.WIRE and ts > facts.now + memory.created_at_upper:
        return "ts is in the future"
    if memory.ts_rule is TsRule.EQUAL and ts != event.created_at:
        return "ts must equal created_at"
    hk = event.tag("hk") or ""
    end = _D_ENDS.get(event.kind)
    if end is not None and event.d != f"{hk}:{end}":
        return f"d must be {hk}:{end}"
    if end is None and not (event.d.startswith(f"{hk}:") and len(event.d) > len(hk) + 1):
        return f"d must start with {hk}:"
    enc = event.tag("enc")
    if enc is not None:
        if enc != "secretbox-v1":
            return "tag enc must be secretbox-v1"
        box = _base64(event.content)
        return "content is not secretbox-v1" if box is None or len(box) < _SECRETBOX_LEAST else None
    if version.lstrip("0") != "1":
        return None
    if not is_object(event.content):
        return NOT_AN_OBJECT
    if memory.verify_hash and end is None:
        digest = sha256(event.content.encode()).hexdigest()
        if event.d[len(hk) + 1 :] != digest:
            return "d does not match the payload hash"
    return None


def _aman_lenient(event: Event, facts: Facts, memory: Memory) -> str | None:
    if event.kind in _LABELS and event.tag("enc") is None and not is_object(event.content):
        return NOT_AN_OBJECT
    return None


# -- transcripts: MEMORY.md 3.7 -----------------------------------------------------------------

_NIP44_LEAST: Final = 99
_PIECE: Final = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


def _transcripts(event: Event, facts: Facts, memory: Memory) -> str | None:
    kind = event.kind
    if kind in (kinds.ENVELOPE, kinds.SHARED_ENVELOPE):
        sealed = _base64(event.content)
        if sealed is None or len(sealed) < _NIP44_LEAST or sealed[0] != 2:
            return "content is not a NIP-44 payload"
        return None
    if kind == kinds.SOURCE_DATA and event.content:
        return "kind 1989 carries no content"
    if kind in (kinds.CONVERSATION_NOTE, kinds.SOURCE_DATA):
        for name in ("seq", "line", "ms"):
            value = event.tag(name)
            if value is not None and _number(value) is None:
                return f"tag {name} must be an integer"
        for name in ("chunk", "split"):
            value = event.tag(name)
            if value is not None and not _is_piece(value):
                return f"tag {name} must be i/n"
    return None


def _is_piece(value: str) -> bool:
    found = _PIECE.fullmatch(value)
    return found is not None and int(found[1]) < int(found[2])


# -- snowclaw: MEMORY.md 4.8, G-24 --------------------------------------------------------------

_CONFIG: Final = "snowclaw:config:"
_MEMORY: Final = "snowclaw:memory:"
_COLLECTIVE: Final = "snow:memory:"
_SHORT_KEY: Final = re.compile(r"[0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{64}")
_BAD_KEY: Final = "d must end with an npub or 16, 32 or 64 lowercase hex characters"
_BAD_SCOPE: Final = (
    "d must be snowclaw:config:global, snowclaw:config:group:<id> or snowclaw:config:npub:<key>"
)
_BAD_MEMORY: Final = "d must be snowclaw:memory:npub:<key> or snowclaw:memory:group:<id>"
_BAD_CATEGORY: Final = "d must be snowclaw:<category>:<key>"


def _snowclaw(event: Event, facts: Facts, memory: Memory) -> str | None:
    d = event.d
    if d.startswith(_CONFIG):
        return _config(event, d.removeprefix(_CONFIG))
    if d.startswith(_MEMORY):
        return _user_or_group(event, d.removeprefix(_MEMORY))
    if d.startswith(_COLLECTIVE):
        return _collective(event)
    _, _, rest = d.partition(":")
    category, colon, _ = rest.partition(":")
    # `memory` and `config` without their colon are no categories (S-06); an empty key is none.
    if not (category and colon):
        return _BAD_CATEGORY
    return None


def _config(event: Event, scope: str) -> str | None:
    where, _, key = scope.partition(":")
    if scope != "global" and not (where in ("group", "npub") and key):
        return _BAD_SCOPE
    if where == "npub" and not _is_key(key):
        return _BAD_KEY
    return None if event.content == "" or is_object(event.content) else NOT_AN_OBJECT


def _user_or_group(event: Event, scope: str) -> str | None:
    where, _, key = scope.partition(":")
    if where not in ("npub", "group") or (where == "group" and not key):
        return _BAD_MEMORY
    if where == "npub" and not _is_key(key):
        return _BAD_KEY
    if where == "group" and event.tag("h") not in (None, key):
        return f"tag h must be {key}"
    return _object_unless_encrypted(event)


def _object_unless_encrypted(event: Event) -> str | None:
    if event.tag("encrypted") == "nip44" or is_object(event.content):  # S-12
        return None
    return NOT_AN_OBJECT


def _is_key(key: str) -> bool:
    """Forms of S-01."""
    if key.startswith("npub1"):
        try:
            public_key(key)
        except Invalid:
            return False
        return key == key.lower()
    return _SHORT_KEY.fullmatch(key) is not None


def _collective(event: Event) -> str | None:
    if event.tag("snow:tier") not in ("public", "group", "private"):
        return "snow:tier must be public, group or private"
    try:
        confidence = float(event.tag("snow:confidence") or "")
    except ValueError:
        confidence = -1.0
    if not 0 <= confidence <= 1:  # NaN is not between
        return "snow:confidence must be a number from 0 to 1"
    version = event.tag("snow:version") or ""
    if _number(version.removeprefix("-")) is None:
        return "snow:version must be an integer"
    return _object_unless_encrypted(event)


def _snowclaw_lenient(event: Event, facts: Facts, memory: Memory) -> str | None:
    if event.d.startswith(_CONFIG) and event.content == "":
        return None
    if event.d.startswith((_CONFIG, _MEMORY, _COLLECTIVE)):
        return _object_unless_encrypted(event)
    return None


# -- nmem: MEMORY.md 5.7 ------------------------------------------------------------------------

_HASHED: Final = re.compile(r".+:[0-9a-f]{64}", re.DOTALL)


def _nmem(event: Event, facts: Facts, memory: Memory) -> str | None:
    d = event.d
    if event.kind == kinds.APP_RECORD:
        for what in ("obs", "prompt"):
            start = f"nmem:{what}:"
            if d.startswith(start):
                shape = f"d must be nmem:{what}:<session>:<sha256 of content>"
                if _HASHED.fullmatch(d[len(start) :]) is None:
                    return shape
                if not is_object(event.content):
                    return NOT_AN_OBJECT
                return None if sha256(event.content.encode()).hexdigest() == d[-64:] else shape
        return (
            "d must be nmem:obs:<session>:<sha256 of content> or "
            "nmem:prompt:<session>:<sha256 of content>"
        )
    if d.startswith("nmem:pin:"):
        if not is_hex64(d.removeprefix("nmem:pin:")):
            return "d must be nmem:pin:<event id>"
    elif not (d.startswith("nmem:session:") and len(d) > len("nmem:session:")):
        return "d must be nmem:session:<id> or nmem:pin:<event id>"
    return None if is_object(event.content) else NOT_AN_OBJECT


def _json_object(event: Event, facts: Facts, memory: Memory) -> str | None:
    return None if is_object(event.content) else NOT_AN_OBJECT


# -- anamnesis: MEMORY.md 6.6 -------------------------------------------------------------------

_BAD_RECORD: Final = "d must be anamnesis:memory, vouch, superseded or meta and a hash"


def _anamnesis(event: Event, facts: Facts, memory: Memory) -> str | None:
    _, what, hashed = (*event.d.split(":", 2), "", "")[:3]
    if event.kind == kinds.APP_RECORD:
        if what != "memory":
            return _BAD_RECORD
        return None if is_object(event.content) else NOT_AN_OBJECT
    if what not in ("vouch", "superseded", "meta"):
        return _BAD_RECORD
    if not is_hex64(hashed) or event.tag("x") != hashed:
        return "d must be anamnesis:vouch:<64 lowercase hex>" if what == "vouch" else _BAD_RECORD
    return None if is_object(event.content) else NOT_AN_OBJECT


SCHEMAS: Final[Mapping[System, Mapping[SchemaMode, Check]]] = {
    system: {SchemaMode.STRICT: strict, SchemaMode.LENIENT: lenient, SchemaMode.OFF: _nothing}
    for system, strict, lenient in (
        (System.AMAN, _aman, _aman_lenient),
        (System.TRANSCRIPTS, _transcripts, _nothing),
        (System.SNOWCLAW, _snowclaw, _snowclaw_lenient),
        (System.NMEM, _nmem, _json_object),
        (System.ANAMNESIS, _anamnesis, _json_object),
    )
}
"""system → how strict → the check; later work fills in the fields of the contents."""


# -- rules that a setting changes ---------------------------------------------------------------

USER_AND_GROUP: Final = "agents write user and group memory"
VOUCHES: Final = "agents and owners vouch"
AMAN_READ: Final = "aman memory"


def tuned_write(rule: WriteRule, memory: Memory) -> WriteRule:
    """A packaged rule as `[memory]` has it."""
    if rule.place.name == USER_AND_GROUP and memory.owner_annotations:  # S-22
        return replace(rule, writers=frozenset({Who.AGENT, Who.OWNER}))
    if rule.place.name == VOUCHES and memory.vouchers is Vouchers.MEMBERS:
        return replace(rule, writers=frozenset({Who.AGENT, Who.OWNER, Who.MEMBER}))
    return rule


def tuned_read(rule: ReadRule, memory: Memory) -> tuple[ReadRule, ...]:
    """A packaged rule as `[memory]` has it; no rule at all where everyone reads."""
    if rule.name == AMAN_READ:  # A-20; private groups stay shut, by the rule of groups
        match memory.anonymous_read:
            case AnonymousRead.NONE:
                return (rule,)
            case AnonymousRead.ENCRYPTED:
                return (replace(rule, excepts=(*rule.excepts, Match(tags=(("enc", True),)))),)
            case AnonymousRead.ALL:
                return ()
            case _:
                assert_never(memory.anonymous_read)
    if rule.name == ENVELOPES and memory.envelope_keys:  # D-32
        listed = Match(authors=memory.envelope_keys)
        return (
            replace(rule, excepts=(*rule.excepts, listed)),
            replace(
                rule,
                name=f"{ENVELOPES} of listed keys",
                match=replace(rule.match, authors=memory.envelope_keys),
                readers=frozenset({Who.ANYONE}),
            ),
        )
    return (rule,)
