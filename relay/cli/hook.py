"""`rookery hook`: called by a coding agent's hooks, and installed into the agent's settings.

M-13, M-22. `rookery hook EVENT` is usually handled by relay.hook before this module is imported.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from relay.cli.options import json_option, print_json
from relay.client.settings import DEFAULT_RELAY, FILE, read_client_file
from relay.clock import unix_now
from relay.errors import UserError
from relay.files import (
    atomic_file,
    content_of,
    is_written_in_place,
    make_private,
    place_of_others,
)
from relay.hook import HookInput, ask_keeper, is_home
from relay.memory.nmem.capture import HookEvent

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT_S: Final = 10
"""Timeout that the agent applies to a hook, in seconds; it needs a fraction of a second."""
_OURS: Final = re.compile(r"(?:\brookery['\"]?|-m relay) hook (?:" + "|".join(HookEvent) + r")\s*$")
_OF_TOOLS: Final = (HookEvent.TOOL, HookEvent.TOOL_FAILURE)
"""Hooks with a tool matcher."""

settings_option = click.option(
    "--settings",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    default=lambda: Path.home() / ".claude/settings.json",
    show_default="~/.claude/settings.json",
    help="Settings file of the agent.",
)


class HookCommands(click.Group):
    """Treats any unknown subcommand as an event name: a hook never fails."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is not None:
            return super().resolve_command(ctx, args)
        return "event", event, args


@click.group(
    "hook",
    cls=HookCommands,
    invoke_without_command=True,
    context_settings={"ignore_unknown_options": True},
    epilog="Example: rookery hook install",
)
@click.pass_context
def hook(ctx: click.Context) -> None:
    """Record a coding agent's actions: its hooks call `rookery hook EVENT`.

    EVENT is SessionStart, UserPromptSubmit, PostToolUse, PostToolUseFailure or Stop; the hook's
    JSON is read from stdin. Only SessionStart prints anything: the agent's context.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(event)


@click.command("event", context_settings={"ignore_unknown_options": True})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def event(args: tuple[str, ...] = ()) -> None:
    """Record one hook event; always succeeds."""
    if ask_keeper(list(args)):
        return
    from relay.client.nmem.hook_recording import others_in, record_alone

    hook_input = sys.stdin.buffer
    assert isinstance(hook_input, HookInput)
    try:
        home = Path.home()
    except RuntimeError:
        return  # without a home folder there is no place to record it
    if not is_home(os.path.expanduser("~")):  # as it was given: a Path has fewer slashes and dots
        return
    if others := others_in(home):
        click.echo(f"rookery hook does nothing: {others}", err=True)
        return
    answer = record_alone(home, hook_input.read(), args[0] if args else "", hook_input.at)
    sys.stdout.buffer.write(answer.encode(errors="replace"))
    sys.stdout.buffer.flush()


@hook.command("keep", hidden=True)
@click.option("--lock", type=int, help="File descriptor of the lock passed on by the hook.")
def keep(lock: int | None) -> None:
    """Keep running and record further hook events; started by the first one."""
    from relay.client.nmem import keeper
    from relay.client.nmem.hook_recording import log

    home = Path.home()
    try:
        asyncio.run(keeper.keep(home, lock=lock))
    except Exception as error:  # noqa: BLE001  its output is not seen
        log(home, "keep", error, unix_now())


@hook.command("install", epilog="Example: rookery hook install --settings ~/.claude/settings.json")
@settings_option
@json_option
def install(settings: Path, *, as_json: bool) -> None:
    """Add `rookery hook` to a coding agent's settings. Existing entries are kept."""
    _edit(settings, _installed, "installed in", as_json=as_json)
    if not as_json and not _hooks_find_a_key(Path.home()):
        here = Path("data/keys/agent.nsec").resolve()
        click.echo(
            "hooks run in your project folders and find no key there: records stay on this machine"
            f" until you add to ~/{FILE}:\n"
            f'  relay = "{DEFAULT_RELAY}"\n'
            f'  agent_key_file = "{here if here.exists() else "/path/to/agent.nsec"}"',
            err=True,
        )


def _hooks_find_a_key(home: Path) -> bool:
    """Whether hooks find a key in any folder. Raises ConfigFaults for an invalid client.toml."""
    if os.environ.get("ROOKERY_KEY"):
        return True
    file = read_client_file(home)
    return file.key_file is not None or file.agent_key_file is not None


@hook.command("uninstall", epilog="Example: rookery hook uninstall")
@settings_option
@json_option
def uninstall(settings: Path, *, as_json: bool) -> None:
    """Remove only the entries that `install` added to the settings."""
    _edit(settings, _uninstalled, "removed from", as_json=as_json)


# -- settings -------------------------------------------------------------------------------------


def _edit(
    path: Path, edited: Callable[[dict[str, Any]], dict[str, Any]], done: str, *, as_json: bool
) -> None:
    if others := place_of_others(path.expanduser(), Path.home()):
        raise UserError(f"{others}: not changed")
    text = _text_of(path.expanduser())
    path = Path(os.path.realpath(path.expanduser()))  # the backup stands beside the file itself
    before = _settings_in(path, text)
    after = edited(before)
    backup = None
    if after != before:
        if text is not None:
            backup = _backed_up(path, text)
        _write(path, orjson.dumps(after, option=orjson.OPT_INDENT_2) + b"\n")
    if as_json:
        print_json(
            {
                "settings": str(path),
                "changed": after != before,
                "backup": None if backup is None else str(backup),
            }
        )
    elif after == before:
        click.echo(f"nothing to change in {path}")
    else:
        click.echo(f"{done} {path}" + ("" if backup is None else f" (before: {backup})"))


def _text_of(path: Path) -> bytes | None:
    """None: there is no such file. Raises UserError, OSError."""
    if is_written_in_place(path):
        raise UserError(f"{path} is no file: name the agent's settings file")
    try:
        return content_of(path)
    except FileNotFoundError:
        return None


def _settings_in(path: Path, text: bytes | None) -> dict[str, Any]:
    try:
        value = orjson.loads(text) if text is not None and text.strip() else {}
    except orjson.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON and was not changed: {error}") from None
    hooks = value.get("hooks", {}) if isinstance(value, dict) else None
    if not isinstance(hooks, dict) or not all(isinstance(each, list) for each in hooks.values()):
        raise UserError(
            f"{path} was not changed: its hooks are not in claude-code's format, an"
            ' object "hooks" of lists'
        )
    assert isinstance(value, dict)
    return value


def hook_faults(home: Path) -> list[str]:
    """What is wrong with the hooks installed for this user; none installed: nothing."""
    path = home / ".claude" / "settings.json"
    try:
        text = _text_of(path)
    except (UserError, OSError):
        return []
    if text is None or b"hook" not in text:
        return []
    try:
        settings = _settings_in(path, text)
    except UserError as wrong:
        return [str(wrong)] if b"rookery" in text else []
    ours = {
        name: command["command"]
        for name, entries in settings.get("hooks", {}).items()
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("hooks"), list)
        for command in entry["hooks"]
        if _is_ours(command)
    }
    if not ours:
        return []
    faults = [f"{path} has no hook for {name}" for name in HookEvent if name.value not in ours]
    for program in {_program_in(command) for command in ours.values()}:
        if program.startswith("/") and not os.access(program, os.X_OK):
            faults.append(f"{path} calls {program}, which is not there")  # noqa: PERF401
    return faults


def _program_in(command: str) -> str:
    try:
        return shlex.split(command)[0]
    except ValueError:
        return ""


def _installed(settings: dict[str, Any]) -> dict[str, Any]:
    after = _uninstalled(settings)
    hooks = dict(after.get("hooks", {}))
    for name in HookEvent:
        entry: dict[str, Any] = {"matcher": "*"} if name in _OF_TOOLS else {}
        command = f"{_program()} hook {name}"
        entry["hooks"] = [{"type": "command", "command": command, "timeout": _TIMEOUT_S}]
        hooks[name.value] = [*hooks.get(name.value, []), entry]
    return {**after, "hooks": hooks}


def _uninstalled(settings: dict[str, Any]) -> dict[str, Any]:
    """Entries left empty are removed."""
    if "hooks" not in settings:
        return settings
    hooks = {}
    for name, entries in settings["hooks"].items():
        remaining = [kept for entry in entries if (kept := _without_ours(entry)) is not None]
        if remaining or not entries:
            hooks[name] = remaining
    others = {name: value for name, value in settings.items() if name != "hooks"}
    if not hooks and settings["hooks"]:
        return others
    return {name: hooks if name == "hooks" else value for name, value in settings.items()}


def _without_ours(entry: Any) -> Any:
    """None: it contained nothing else."""
    commands = entry.get("hooks") if isinstance(entry, dict) else None
    if not isinstance(commands, list):
        return entry
    remaining = [each for each in commands if not _is_ours(each)]
    if len(remaining) == len(commands):
        return entry
    return {**entry, "hooks": remaining} if remaining else None


def _is_ours(command: Any) -> bool:
    text = command.get("command") if isinstance(command, dict) else None
    return isinstance(text, str) and _OURS.search(text) is not None


def _program() -> str:
    """The command of this installation, independent of the agent's PATH."""
    beside = Path(sys.executable).with_name("rookery")
    if beside.exists():
        return shlex.quote(str(beside))
    # -P: do not import a `relay` package from the project folder.
    return f"{shlex.quote(sys.executable)} -P -m relay"


def _backed_up(path: Path, text: bytes) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    backup = path.with_name(f"{path.name}.{stamp}.bak")
    _write_new(backup, text, _mode_of(path))
    return backup


def _write(path: Path, text: bytes) -> None:
    """Atomic."""
    make_private(path.parent)
    with atomic_file(path, _mode_of(path)) as file:
        file.write(text)


def _write_new(path: Path, text: bytes, mode: int) -> None:
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, mode)
    with os.fdopen(file, "wb") as opened:
        opened.write(text)


def _mode_of(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return 0o600
