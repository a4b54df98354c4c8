"""Records from the hooks of a coding agent (M-13…M-21).

Invariants: texts are redacted and cut before they are put into a record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, assert_never

from relay.errors import Invalid
from relay.memory.bounded import BoundedDict
from relay.memory.junk import core_of, without_echo
from relay.memory.nmem.checks import MAX_PROMPT
from relay.memory.nmem.records import Observation, ObsType, Prompt, Session, Source
from relay.memory.nmem.tools import classify_tool, file_of, git_facts, response_text, title_of
from relay.memory.secrets import Filtered
from relay.nostr.event import object_of_any_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from relay.memory.secrets import SecretFilter

_RESPONSE: Final = 2000
"""Characters of a failed call's response."""
_GIT: Final = 20_000
"""Characters of a response in which git's output is searched."""
_cores: Final[BoundedDict[bytes, bytes]] = BoundedDict(20_000)
"""Hash of a thought → that of its core."""
_MAX_PATH: Final = 4096
"""Characters, as Linux permits. All folders above one take the square of its length in memory."""
_AGENT_PROMPT_PREFIX: Final = "<system-reminder>"


class HookEvent(StrEnum):
    SESSION_START = "SessionStart"
    USER_PROMPT = "UserPromptSubmit"
    TOOL = "PostToolUse"
    TOOL_FAILURE = "PostToolUseFailure"
    STOP = "Stop"


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook call."""

    event: HookEvent
    session: str
    cwd: str = ""
    source: str = ""
    """Why the session started."""
    prompt: str = ""
    tool: str = ""
    given: Mapping[str, object] = field(default_factory=dict)
    """The tool's input."""
    response: object = None
    transcript_path: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """A session stopped and is to be closed."""

    session: str
    at: int


Captured = Session | Prompt | Observation | Ending


def hook_in(text: str, named: str | None = None) -> Hook:
    """Decode a hook. `named` overrides its `hook_event_name`. Raises Invalid."""
    fields = object_of_any_size(text)
    if fields is None:
        raise Invalid("the hook is not a JSON object")
    name = _string(fields, "hook_event_name") if named is None else named
    try:
        event = HookEvent(name)
    except ValueError:
        raise Invalid(f"no hook is called {name[:40]!r}") from None
    session = _string(fields, "session_id")
    if not session:
        raise Invalid("session_id must be a string")
    given = fields.get("tool_input")
    return Hook(
        event,
        session,
        _string(fields, "cwd"),
        _string(fields, "source"),
        _string(fields, "prompt"),
        _string(fields, "tool_name"),
        given if isinstance(given, dict) else {},
        fields.get("tool_response", fields.get("error")),
        _string(fields, "transcript_path") or None,
    )


def captured(
    hook: Hook, now: int, project: str, secrets: SecretFilter, prompt: str | None = None
) -> tuple[Captured, ...]:
    """The records to write, in order. `prompt`: the hash of the session's newest prompt."""
    match hook.event:
        case HookEvent.SESSION_START:
            return _started(hook, now, project)
        case HookEvent.USER_PROMPT:
            prompt = without_echo(hook.prompt)
            if not prompt.strip() or prompt.startswith(_AGENT_PROMPT_PREFIX):
                return ()
            text = secrets.filtered(prompt, MAX_PROMPT).text
            return (Prompt(hook.session, now, Source.USER, text),)
        case HookEvent.TOOL | HookEvent.TOOL_FAILURE:
            return (_called(hook, now, secrets, prompt),)
        case HookEvent.STOP:
            return (Ending(hook.session, now),)
        case _:
            assert_never(hook.event)


_STARTS: Final = {
    "compact": ObsType.SESSION_COMPACT,
    "resume": ObsType.SESSION_RESUME,
    "clear": ObsType.SESSION_CLEAR,
}


def _started(hook: Hook, now: int, project: str) -> tuple[Captured, ...]:
    session = Session(hook.session, project, now)
    obs_type = _STARTS.get(hook.source)
    if obs_type is None:
        return (session,)
    return session, Observation(hook.session, now, obs_type, hook.event, hook.source)


def _called(hook: Hook, now: int, secrets: SecretFilter, prompt: str | None) -> Observation:
    obs_type = classify_tool(hook.tool, hook.given)
    title = title_of(hook.tool, hook.given)
    # Tool names are never secrets, though they may look like one.
    shown = Filtered(hook.tool, is_redacted=False) if title is None else secrets.filtered(*title)
    path = file_of(hook.tool, hook.given)
    metadata: dict[str, object] = {}
    if hook.event is HookEvent.TOOL_FAILURE:
        answer = secrets.filtered(without_echo(response_text(hook.response)), _RESPONSE).text
        metadata |= {"failed": True, "response": answer}
    elif obs_type in (ObsType.GIT_COMMIT, ObsType.GIT_PUSH):
        metadata |= git_facts(obs_type, secrets.filtered(response_text(hook.response), _GIT).text)
    if shown.is_redacted:
        metadata["redacted"] = True
    return Observation(
        hook.session,
        now,
        obs_type,
        hook.event,
        shown.text,
        hook.tool or None,
        None if path is None else secrets.filtered(path).text,
        metadata or None,
        prompt,
    )


def _string(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    # Lone surrogates are valid JSON and cannot be stored.
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


# -- project ------------------------------------------------------------------------------------


def project_at(cwd: str, home: str, is_root: Callable[[PurePath], bool]) -> str:
    """Project name of a folder (M-21). `is_root`: whether a folder contains `.git`."""
    if not cwd:
        return "unknown"
    folder = PurePath(cwd)
    above = folder.parents if len(cwd) <= _MAX_PATH else ()
    root = next((each for each in (folder, *above) if is_root(each)), folder)
    return "home" if root == PurePath(home) else root.name or "unknown"


# -- thinking blocks ----------------------------------------------------------------------------


def thoughts_in(
    lines: Iterable[bytes],
    session: str,
    now: int,
    secrets: SecretFilter,
    known: Iterable[str] = (),
) -> Iterator[Prompt]:
    """The thinking blocks in lines of a transcript (M-19).

    Each text once per session: `known` are the recorded ones, read if there is a thought. The time
    is the line's own if it has one, so that a line read twice gives the same prompt.
    """
    seen: set[bytes] | None = None
    for line in lines:
        if b'"thinking"' not in line:  # skips parsing most lines
            continue
        fields = object_of_any_size(line.decode(errors="replace"))
        if fields is None or fields.get("type") != "assistant":
            continue
        for text in _thinking(fields.get("message")):
            redacted = secrets.filtered(without_echo(text).strip(), MAX_PROMPT).text
            if not redacted:
                continue
            if seen is None:
                seen = set(map(_hash_of_core, known))
            if (core := _hash_of_core(redacted)) not in seen:
                seen.add(core)
                at = _time_of(fields.get("timestamp"), now)
                yield Prompt(session, at, Source.AGENT, redacted)


def _hash_of_core(text: str) -> bytes:
    """Of `core_of`, which takes long for all that is known of a session."""
    key = _hash(text)
    found = _cores.get(key)
    if found is None:
        _cores[key] = found = _hash("\n".join(core_of(text)))
    return found


def _hash(text: str) -> bytes:
    return sha256(text.encode(errors="surrogatepass")).digest()


def _thinking(message: Any) -> Iterator[str]:
    blocks = message.get("content") if isinstance(message, dict) else None
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict) and block.get("type") == "thinking":
            text = block.get("thinking")
            if isinstance(text, str):
                yield text


def _time_of(stamp: object, now: int) -> int:
    try:
        at = datetime.fromisoformat(stamp) if isinstance(stamp, str) else None
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:  # without a zone it would be local time
        return now
    seconds = int(at.timestamp())
    return seconds if seconds >= 0 else now
