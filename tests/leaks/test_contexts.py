"""Everything that gives texts to a model is listed here, with the test that plants texts in it; and
the checks of planted texts fail for renderers with one fault each.
"""

from __future__ import annotations

import inspect
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pytest
from mcp import Client as McpClient
from mcp.types import TextContent

import relay.client
from relay.cli import rookery
from relay.client.nmem import Nmem, memory
from relay.client.nmem.apply import put_all
from relay.client.nmem.updates import set_about
from relay.errors import RookeryError
from relay.mcp import freshness, git
from relay.mcp.arguments import arguments_in
from relay.mcp.server import server_of
from relay.mcp.tools import TOOLS, Effect, Place, Toolbox
from relay.memory.fence import (
    DATA,
    FENCE_END,
    UNNAMED,
    attributed,
    attribution,
    fenced,
    name_in,
    recalled,
)
from relay.memory.fields import compact
from relay.memory.nmem.capture import HookEvent
from relay.memory.nmem.records import Session, session_draft
from tests import cast
from tests.harness.fake_relay import FakeRelay
from tests.harness.patience import ANSWER_S
from tests.leaks.planted import (
    BY,
    EVE,
    MARK,
    PLANTED,
    check_authors,
    check_fenced,
    check_record,
    check_shown,
)
from tests.leaks.test_poisoning import WAYS
from tests.unit.client.nmem_cache import NOW
from tests.unit.client.nmem_cache import told as hooked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.harness.fake_relay import Visitor

HERE: Final = Path(__file__).parent
NMEM, SNOWCLAW, RECORDS = (f"test_poisoning{suffix}.py" for suffix in ("", "_snowclaw", "_records"))
# What follows is compared with the code: a new context is added here, and texts are planted in it.
HOOKS = {
    HookEvent.SESSION_START: NMEM,
    HookEvent.USER_PROMPT: NMEM,
    HookEvent.TOOL: NMEM,
    HookEvent.TOOL_FAILURE: NMEM,
    HookEvent.STOP: NMEM,
}
COMMANDS = {
    "context": SNOWCLAW,
    "nmem context": NMEM,
    "memory search": RECORDS,
    "session search": RECORDS,
    "anamnesis recall": RECORDS,
    "aman rehydrate": RECORDS,
}
METHODS = {
    "Aman.format_prompt": RECORDS,
    "Aman.rehydrate": RECORDS,
    "Nmem.hook": NMEM,
    "Nmem.context": NMEM,
    "Snowclaw.assemble": SNOWCLAW,
    "Snowclaw.recall": SNOWCLAW,
}
PEOPLE = "../unit/cli/test_names.py"
CONSOLE = "../unit/console/test_pages.py"
MODULES = {
    "relay/cli/anamnesis.py": RECORDS,
    "relay/cli/memory_search.py": RECORDS,
    "relay/cli/nmem.py": "../unit/cli/test_nmem.py",
    "relay/cli/session/chat.py": "../unit/cli/test_session.py",
    "relay/cli/session/read.py": RECORDS,
    "relay/client/aman_tables.py": RECORDS,
    "relay/client/nmem/hook_recording.py": "../unit/client/test_nmem_keeper.py",
    "relay/client/nmem/queries.py": NMEM,
    "relay/client/nmem/summaries.py": NMEM,
    "relay/client/nmem/sync.py": NMEM,
    "relay/client/snowclaw.py": SNOWCLAW,
    "relay/memory/interop/exported.py": "../unit/memory/interop/test_exported.py",
    "relay/memory/junk.py": "../unit/memory/test_junk.py",
    "relay/memory/snowclaw/system_prompt.py": SNOWCLAW,
    "relay/mcp/git.py": "test_contexts.py",
    "relay/mcp/rows.py": "../unit/client/test_recall.py",
    "relay/mcp/server.py": "test_contexts.py",
    "relay/cli/names.py": PEOPLE,
    "relay/cli/options.py": "../unit/cli/test_options.py",
    "relay/console/ask.py": CONSOLE,
    "relay/console/html.py": CONSOLE,
    "relay/console/pages/context.py": "../unit/console/test_context_page.py",
    "relay/client/settings.py": PEOPLE,
    "relay/memory/aman/prompt.py": RECORDS,
    "relay/memory/nmem/context.py": NMEM,
    "relay/memory/snowclaw/chat.py": SNOWCLAW,
    "relay/memory/snowclaw/key_filter.py": SNOWCLAW,
    "relay/memory/snowclaw/context.py": SNOWCLAW,
}
"""What imports the fence."""
FOR_PEOPLE = """
aman: add-tool clear import-sqlite set-preference set-summary show subscribe
anamnesis: amend bench children credit export get import remember resolve schema supersede trace
 trust validate vouch withdraw
config: get list set unset
group: accept add create delete edit invite invites join leave list pin read remove requests
 revoke say show
hook: install keep uninstall
key: rotate show
member: add invite list remove
memory: diff export forget get history import list restore set show why
nmem: import maintain mark pin purge rebuild search status sync unpin
policy: check diff explain log pull push show sweep test versions
profile: set
session: export follow forget import list resume show verify view
session pns: derive unwrap wrap
: allow backup ban chat compact completion console demo doctor export forget hook import init keygen
 log man mcp move restart restore serve stats status sync top unban verify
"""
"""Commands for a terminal, and of programs; `mcp` and `hook` are told apart above."""


# -- the lists are complete -----------------------------------------------------------------------


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def test_every_hook_is_listed() -> None:
    assert set(HOOKS) == set(HookEvent)


def test_every_command_is_for_a_model_or_for_people() -> None:
    listed = set(COMMANDS)
    for line in re.sub(r"\n (?=\w)", " ", FOR_PEOPLE).strip().splitlines():
        group, _, names = line.partition(":")
        listed |= {f"{group} {name}".strip() for name in names.split()}
    assert dict(commands(rookery)).keys() == listed


def test_every_command_with_a_format_for_a_model_is_listed() -> None:
    found = {
        name
        for name, command in commands(rookery)
        for option in command.params
        if "context" in getattr(option.type, "choices", ()) or "context" in name.split()
    }
    assert found <= COMMANDS.keys()
    assert found == COMMANDS.keys() - {"aman rehydrate"}


def test_every_method_that_mentions_a_model_is_listed() -> None:
    found = {
        f"{name}.{method}"
        for name in relay.client.__all__
        if inspect.isclass(of := getattr(relay.client, name))
        for method, code in inspect.getmembers(of, callable)
        if re.search(r"\b(a|the) (\w+ )?model\b|\bcontext\b", inspect.getdoc(code) or "")
        and not method.startswith("_")
    }
    assert found - NOT_FOR_A_MODEL <= METHODS.keys()
    assert found >= NOT_FOR_A_MODEL
    for method in METHODS:
        of, _, name = method.partition(".")
        assert callable(getattr(getattr(relay.client, of), name))


NOT_FOR_A_MODEL = {
    "Anamnesis.amend",
    "Snowclaw.note_user",
}
"""They write; `amend` has a field of that name."""


FENCES = re.compile(r"from relay\.memory\.fence import (?!shell_word(?:  #.*)?$)", re.MULTILINE)
"""`shell_word` alone is for commands that people copy."""


def test_every_module_that_uses_the_fence_is_listed() -> None:
    root = HERE.parents[1]
    found = {
        str(path.relative_to(root))
        for path in (root / "relay").rglob("*.py")
        if FENCES.search(path.read_text("utf-8"))
    }
    assert found == MODULES.keys()


def test_the_only_module_that_asks_a_model_is_listed() -> None:
    root = HERE.parents[1]
    found = [
        str(path.relative_to(root))
        for path in (root / "relay").rglob("*.py")
        if "/chat/completions" in path.read_text("utf-8")
    ]
    assert found == ["relay/client/nmem/summaries.py"]
    assert MODULES[found[0]] == NMEM


def test_every_list_names_a_test() -> None:
    for listed in (HOOKS, COMMANDS, METHODS, MODULES):
        for file in listed.values():
            assert (HERE / str(file)).exists()


# -- MCP ------------------------------------------------------------------------------------------

CALLS: Final[dict[str, dict[str, object]]] = {
    "search": {"query": MARK, "limit": 100},
    "recall": {"question": MARK},
    "get_observations": {"ids": list(range(1, 51))},
    "timeline": {"anchor": 1, "before": 50, "after": 50},
    "session_summaries": {"limit": 50},
    "regenerate_context": {"project": "rook"},
    "recent_context": {"limit": 100},
    "session_trace": {"session_id": "s"},
    "file_history": {"file_path": MARK},
    "git_file_summary": {"file_path": MARK},
    "current_stance": {},
}
WRITING = {"queue_task", "create_marker"}
"""They tell what the model itself gave."""


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No relay comes."""
    monkeypatch.setattr(freshness, "_WAIT_S", 0.0)


@asynccontextmanager
async def boxed(folder: Path) -> AsyncIterator[tuple[Nmem, Toolbox]]:
    """A memory whose relay is away, for which no answer waits, and its tools."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(freshness, "_WAIT_S", 0.0)
        patched.setattr(memory, "_RECALL_S", 0.0)
        async with (
            Nmem("ws://127.0.0.1:1", cast.robot, folder / "nmem.db") as nmem,
            Toolbox(nmem, Place(folder, "rook"), lambda: NOW + 60) as toolbox,
        ):
            yield nmem, toolbox


async def test_the_mcp_server_offers_these_tools_and_nothing_else(tmp_path: Path) -> None:
    assert {tool.name for tool in TOOLS} == CALLS.keys() | WRITING
    assert {tool.name for tool in TOOLS if not tool.effect.is_reading} == WRITING
    async with boxed(tmp_path) as (_, toolbox):
        offered = {method for method in server_of(toolbox)._request_handlers if "/" in method}
    assert {"tools/list", "tools/call"} <= offered
    assert not {method for method in offered if method.startswith(("resources/", "prompts/"))}


def check_json(value: object, is_attributed: bool = False) -> None:  # noqa: FBT001, FBT002
    """Each text with a mark is fenced, or within an object that names its author."""
    if isinstance(value, dict):
        author = value.get("author")
        own = is_attributed or (isinstance(author, str) and author.endswith(BY))
        for name, each in value.items():
            if name == "context" and each:
                check_fenced(str(each))
                check_authors(str(each), [EVE.npub])
            elif name != "author":
                check_json(each, own)
    elif isinstance(value, list):
        for each in value:
            check_json(each, is_attributed)
    elif isinstance(value, str) and MARK in value:
        assert is_attributed, value


@pytest.mark.proves("M-29", "G-23")
async def test_the_beginning_of_several_ids_is_answered_without_what_others_chose(
    tmp_path: Path,
) -> None:
    async with boxed(tmp_path) as (nmem, toolbox), McpClient(server_of(toolbox)) as agent:

        async def fault() -> str:
            answer = await agent.call_tool("session_trace", {"session_id": "s-"})
            assert answer.is_error
            (content,) = answer.content
            assert isinstance(content, TextContent)
            return content.text

        sessions = [
            Session(f"s-{number}{text}", "rook", NOW) for number, text in enumerate(PLANTED)
        ]
        events = [EVE.sign(*session_draft(each, None, "den")) for each in sessions]
        put_all(nmem.database, events, cast.robot.pubkey, frozenset())
        assert await fault() == "several sessions begin with s-: some of other keys"
        hooked(nmem.database, "SessionStart", NOW, "s-me", source="startup")
        assert await fault() == "several sessions begin with s-: s-me, some of other keys"
        for number in (1, 16):  # `session resume` continues sessions of others
            hooked(nmem.database, "SessionStart", NOW, sessions[number].id, source="resume")
        named = (await fault()).removeprefix("several sessions begin with s-: ").split(", ")
        assert len(named) == 4
        assert all(re.fullmatch("[\\w\N{REPLACEMENT CHARACTER}-]{1,64}", id_) for id_ in named[:3])
        assert named[3] == "some of other keys"


async def _no_repository(*_: object) -> None:
    raise git.NotInGit("not in a repository")


@pytest.mark.proves("M-29", "G-23")
@pytest.mark.parametrize("text", [PLANTED[1], PLANTED[16], PLANTED[24]], ids=range(3))
@pytest.mark.parametrize("way", WAYS)
async def test_each_tool_tells_it_fenced_or_with_its_author(
    tmp_path: Path, way: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "commits_in", _no_repository)  # then memory tells of commits
    async with boxed(tmp_path) as (nmem, toolbox):
        planted = WAYS[way].plant(text)
        put_all(nmem.database, planted, cast.robot.pubkey, frozenset())
        name = text if WAYS[way].name == "planted" else "Eve"
        with nmem.database.transaction() as db:
            set_about(db, {f"name:{EVE.pubkey}": name})
        told = set()
        for tool in TOOLS:
            if tool.name not in CALLS or tool.effect is not Effect.READS_MEMORY:
                continue
            call = CALLS[tool.name] | ({"file_path": text} if tool.name == "file_history" else {})
            try:
                answer = await tool.answer(toolbox, **arguments_in(tool.parameters, call))
            except RookeryError as error:
                answer = str(error).replace(f"{MARK}: ", "")  # the path that was asked for
            if isinstance(answer, dict) and tool.name == "file_history":
                answer = answer["sessions"]  # the path is the question
            check_json(answer)
            if MARK in compact(answer):
                told.add(tool.name)
        assert told


@pytest.mark.proves("M-29", "G-23")
async def test_what_others_committed_is_fenced_or_beside_its_author(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def commits(*_: object) -> tuple[str, list[git.Commit]]:
        return text, [git.Commit("0" * 40, NOW, text, text, 1, 0, (text, f"{text}.py"))] * 2

    monkeypatch.setattr(git, "commits_in", commits)
    async with boxed(tmp_path) as (_, toolbox):
        for text in PLANTED:
            answer: Any = await toolbox.git_file_summary("f", 50, full=True)
            assert MARK in answer["summary"]
            check_fenced(answer["summary"])
            check_authors(answer["summary"], [])
            assert len(answer["summary"].splitlines()) == 4
            author = name_in(text) or UNNAMED
            assert {each["author"] for each in answer["commits"]} == {author}


@pytest.mark.proves("M-29", "G-23")
async def test_no_answer_of_a_tool_holds_hidden_text(tmp_path: Path) -> None:
    async with boxed(tmp_path) as (nmem, toolbox):
        for text in PLANTED:
            await nmem.mark(text, "rook")
        async with McpClient(server_of(toolbox), mode="legacy") as client:
            for name, call in CALLS.items():
                if name not in ("git_file_summary", "current_stance"):
                    result = await client.call_tool(name, call)
                    for part in result.content:
                        check_shown(part.text)  # type: ignore[union-attr]


@pytest.mark.proves("M-29", "G-23")
@pytest.mark.parametrize("text", [PLANTED[1], PLANTED[20], PLANTED[25]], ids=range(3))
async def test_what_a_relay_says_is_fenced(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusals and faults: a relay may be anybody's."""

    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        said = f"restricted: {text * 9}"
        if frame[0] == "EVENT":
            await visitor.say_no(frame[1]["id"], said)
        else:
            await visitor.say("CLOSED", frame[1], said)

    monkeypatch.setattr(freshness, "_WAIT_S", ANSWER_S)
    async with FakeRelay() as relay:
        relay.on |= dict.fromkeys(("EVENT", "REQ", "NEG-OPEN"), refuse)
        async with (
            Nmem(relay.url, cast.robot, tmp_path / "nmem.db") as nmem,
            Toolbox(nmem, Place(tmp_path, "rook"), lambda: NOW + 60) as toolbox,
            McpClient(server_of(toolbox), mode="legacy") as client,
        ):
            await nmem.mark("mine", "rook")
            search = await client.call_tool("search", {"query": "mine"})
            recall = await client.call_tool("recall", {"question": "mine"})
    assert recall.is_error
    for part in (search.content[1], recall.content[-1]):
        before, _, fence = part.text.partition("<memory")  # type: ignore[union-attr]
        assert MARK in fence
        assert MARK not in before
        assert len(fence) < 1000
        check_fenced(f"<memory{fence}")


# -- the checks can fail --------------------------------------------------------------------------

BY_EVE: Final = attribution(EVE.pubkey, "Eve")


def _fence(text: str) -> str:
    return f'<memory source="x" author="{EVE.npub}">\n{DATA}\n{text}\n{FENCE_END}'


RENDERERS: Final[dict[str, Callable[[str], str]]] = {
    "without a fence": lambda text: attributed(text, BY_EVE),
    "without a line that says that it is data": lambda text: fenced(
        attributed(text, BY_EVE), "x", EVE.npub
    ).replace(f"{DATA}\n", ""),
    "without an author": lambda text: fenced(text, "x", EVE.npub),
    "with another's name": lambda text: fenced(
        attributed(text, attribution(cast.owner.pubkey, "Eve")), "x", EVE.npub
    ),
    "with texts as they are": lambda text: _fence(f"{text} — by {BY_EVE}"),
    "with exact tags replaced": lambda text: _fence(
        attributed(text, BY_EVE).replace(FENCE_END, "").replace("<memory", "")
    ),
    "with tags of any case replaced": lambda text: _fence(
        re.sub(r"(?i)<(?=[\s/]*memory\b)", "&lt;", attributed(text, BY_EVE))
    ),
    "with forged authors": lambda text: fenced(f"{text} — by {BY_EVE}", "x", EVE.npub),
    "with hidden characters": lambda text: _fence(attributed(re.sub("[<＜‹]", "(", text), BY_EVE)),
}
"""Of one record of Eve, each with one fault."""


def _is_found(renderer: Callable[[str], str], text: str) -> bool:
    try:
        check_record(renderer(text), EVE.npub)
    except (AssertionError, IndexError):
        return True
    return False


@pytest.mark.proves("G-23")
@pytest.mark.parametrize("fault", RENDERERS)
def test_a_renderer_with_a_fault_is_found(fault: str) -> None:
    assert any(_is_found(RENDERERS[fault], text) for text in PLANTED)


def test_the_one_without_a_fault_is_not() -> None:
    assert not any(
        _is_found(lambda text: recalled(text, ("x",), EVE.pubkey, cast.robot.pubkey, "Eve"), text)
        for text in PLANTED
    )


@pytest.mark.parametrize(
    "value",
    [
        MARK,
        [MARK],
        {"content": MARK},
        {"content": MARK, "author": "Eve"},
        {"content": MARK, "author": attribution(cast.owner.pubkey, "Eve")},
        {"touches": [{"content": MARK, "author": BY_EVE}], "project": MARK},
        {"context": f"# nmem context\n- {MARK}"},
    ],
)
def test_an_answer_without_an_author_is_found(value: object) -> None:
    with pytest.raises((AssertionError, IndexError)):
        check_json(value)
