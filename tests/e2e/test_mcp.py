"""`rookery mcp` with the official SDK's client: over stdio and HTTP, beside a relay and a cache."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest

from tests.effort import tries
from tests.harness.patience import ANSWER_S

pytest.importorskip("mcp")

import aiohttp
from mcp import Client as McpClient
from mcp import MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from relay.client import Client
from relay.client.nmem import Nmem
from relay.memory.fence import DATA
from relay.memory.nmem.summary import Summary
from tests import cast
from tests.e2e.machines import LAUNCH, machine
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from relay.nostr.keys import SecretKey
    from tests.e2e.machines import Machine

    Way = Callable[..., AbstractAsyncContextManager["Agent"]]

pytestmark = pytest.mark.slow

GROUP = "team"
SESSION = "5e551011-0000-4000-8000-000000000001"


def begin_repository(folder: Path) -> None:
    (folder / "a.py").write_text("1\n", "utf-8")
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Begin"]):
        subprocess.run(
            ["git", "-c", "user.name=Ann", "-c", "user.email=a@example.com", *arguments],
            cwd=folder,
            check=True,
        )


@asynccontextmanager
async def workplace(key: SecretKey, url: str) -> AsyncIterator[Machine]:
    """A machine of the group, with a repository to work in."""
    async with machine(key, url) as made:
        made.set_up(f'[nmem]\ngroup = "{GROUP}"\n')
        begin_repository(made.work)
        yield made


COMMAND = ("-c", LAUNCH, "mcp")


@asynccontextmanager
async def over_stdio(place: Machine, mode: str = "auto") -> AsyncIterator[Agent]:
    server = StdioServerParameters(
        command=sys.executable, args=[*COMMAND], env=place.environ, cwd=place.work
    )
    async with McpClient(server, mode=mode) as client:
        yield Agent(client)


@asynccontextmanager
async def over_http(place: Machine, mode: str = "auto") -> AsyncIterator[Agent]:
    async with listening(place) as (url, token):
        http = create_mcp_http_client({"Authorization": f"Bearer {token}"})
        server = streamable_http_client(url, http_client=http)
        async with http, McpClient(server, mode=mode) as client:
            yield Agent(client)


WAYS = [over_stdio, over_http]
"""Of each test `make test` takes one, of some the first, of some the last."""


@asynccontextmanager
async def listening(place: Machine) -> AsyncIterator[tuple[str, str]]:
    """A server over HTTP: its URL and its token. It ends well."""
    process = await start_rookery(
        "mcp",
        "--http",
        "0",
        cwd=place.work,
        env=place.environ,
        stderr=PIPE,
    )
    assert process.stderr is not None
    said = b""
    try:
        async with asyncio.timeout(ANSWER_S):
            while b"bearer token" not in said:
                line = await process.stderr.readline()
                assert line, said
                said += line
        url = re.search(r"listening on (\S+)", said.decode())
        token = re.search(r"bearer token: (\S+)", said.decode())
        assert url is not None
        assert token is not None
        yield url[1], token[1]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            out, error = await asyncio.wait_for(process.communicate(), ANSWER_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
    assert (process.returncode, out, error) == (0, b"", b"")


class Agent:
    """Who calls the tools."""

    def __init__(self, client: McpClient) -> None:
        self.client = client

    async def said(self, tool: str, **arguments: object) -> tuple[Any, str]:
        """The answer, and the remark behind it, if any."""
        result = await self.client.call_tool(tool, arguments)
        texts = [content.text for content in result.content if content.type == "text"]
        assert not result.is_error, texts
        return json.loads(texts[0]), "".join(texts[1:])

    async def answer(self, tool: str, **arguments: object) -> Any:
        said, remark = await self.said(tool, **arguments)
        assert remark == ""
        return said

    async def fault(self, tool: str, **arguments: object) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error
        (content,) = result.content
        assert content.type == "text"
        assert "Traceback" not in content.text
        return content.text


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    """A relay of one owner, whose two agents share a group."""
    rookery = Rookery(tmp_path / "relay")
    agents = (cast.robot, cast.rover)
    await rookery.init(
        "--owner",
        cast.owner.pubkey,
        *(word for agent in agents for word in ("--agent", agent.pubkey)),
    )
    async with rookery:
        await rookery.start()
        async with Client(rookery.url, cast.owner) as owner:
            await owner.send(9007, "", [["h", GROUP]])
            await owner.send(9000, "", [["h", GROUP], *(["p", agent.pubkey] for agent in agents)])
        yield rookery


@pytest.fixture
async def told(rookery: Rookery, tmp_path: Path) -> Rookery:
    """… one of whom has worked, and told the relay."""
    async with Nmem(rookery.url, cast.robot, tmp_path / "told.db", group=GROUP) as nmem:
        await nmem.session(SESSION, "rooster")
        await nmem.prompt(SESSION, "make the dedupe faster")
        await nmem.observe(SESSION, "file_read", "/code/dedupe.py", file_path="/code/dedupe.py")
        await nmem.observe(SESSION, "file_edit", "/code/dedupe.py", file_path="/code/dedupe.py")
        await nmem.observe(SESSION, "command", f"pytest -k dedupe {'x ' * 200}end")
        await nmem.observe(SESSION, "git_commit", "git commit -m 'Dedupe in one pass'")
        await nmem.end_session(
            SESSION,
            Summary("faster dedupe", learned=("one pass is enough",), next_steps=("measure it",)),
        )
        synced = await nmem.sync()
        assert (synced.refused, synced.waiting) == (0, 0)
    return rookery


TOOLS = {
    "search": ["query", "project", "obs_type", "limit", "offset", "orderBy", "before", "after"],
    "recall": ["question", "system", "limit"],
    "get_observations": ["ids"],
    "timeline": ["anchor", "before", "after"],
    "session_summaries": ["project", "limit", "before", "after"],
    "regenerate_context": ["project", "before"],
    "recent_context": ["project", "limit", "before", "after"],
    "session_trace": ["session_id", "before", "after"],
    "file_history": ["file_path", "before", "after", "limit"],
    "git_file_summary": ["file_path", "max_commits", "full"],
    "queue_task": ["prompt", "project", "cwd", "after"],
    "create_marker": ["text", "project"],
    "current_stance": ["session_id", "alpha"],
}
DEFAULTS = {
    "search": {"limit": 20, "offset": 0, "orderBy": "relevance"},
    "recall": {"limit": 10},
    "timeline": {"before": 5, "after": 5},
    "session_summaries": {"limit": 10},
    "recent_context": {"limit": 30},
    "file_history": {"limit": 10},
    "git_file_summary": {"max_commits": 50, "full": False},
    "current_stance": {"alpha": 0.08},
}
WRITING = {"queue_task", "create_marker"}


async def test_a_server_whose_client_keeps_stdin_open_ends_on_sigterm(rookery: Rookery) -> None:
    client = {"name": "a", "version": "1"}
    asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    async with workplace(cast.rover, rookery.url) as place:
        process = await start_rookery("mcp", stdin=PIPE, cwd=place.work, env=place.environ)
        assert process.stdin is not None
        assert process.stdout is not None
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(ANSWER_S):
            assert b"serverInfo" in await process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), ANSWER_S) == -signal.SIGTERM
        process.stdin.close()


@pytest.mark.proves("M-29")
async def test_the_tools_are_nmems_with_their_parameters(rookery: Rookery) -> None:
    async with workplace(cast.rover, rookery.url) as place, over_stdio(place) as agent:
        listed = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
    assert {name: list(tool.input_schema["properties"]) for name, tool in listed.items()} == TOOLS
    for name, tool in listed.items():
        properties = tool.input_schema["properties"]
        defaults = {key: said["default"] for key, said in properties.items() if "default" in said}
        assert defaults == DEFAULTS.get(name, {})
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (name not in WRITING)
        assert tool.annotations.destructive_hint is False
        assert tool.annotations.open_world_hint is False


@pytest.mark.parametrize("way", WAYS[: tries(2, 2, 1)])
@pytest.mark.parametrize("mode", ["legacy", "auto"][: tries(2, 2, 1)])
@pytest.mark.proves("M-29")
async def test_every_tool_answers_what_another_machine_told(
    told: Rookery, tmp_path: Path, way: Way, mode: str
) -> None:
    async with workplace(cast.rover, told.url) as place, way(place, mode) as agent:
        # Three steps, each with a small answer.
        found = await agent.answer("search", query="dedupe", orderBy="blended", project="rooster")
        assert {row["obs_type"] for row in found} == {
            "file_read",
            "file_edit",
            "command",
            "git_commit",
            "prompt",
        }
        (prompt,) = [row["id"] for row in found if row["obs_type"] == "prompt"]
        (read,) = await agent.answer("get_observations", ids=[prompt])
        assert (read["content"], read["source_event"]) == ("make the dedupe faster", "user")
        (first, *_) = await agent.answer("recall", question="what was deduped?", system="nmem")
        assert "dedupe" in first["text"]
        assert first["author"].endswith("…)")
        (command,) = await agent.answer("search", query="dedupe", obs_type="command")
        assert list(command) == [
            "author",
            "id",
            "timestamp",
            "obs_type",
            "content_preview",
            "file_path",
            "session_id",
            "is_pinned",
            "event_id",
        ]
        by_robot = f"unnamed ({cast.robot.npub[:20]}…)"
        assert {row["author"] for row in found} == {by_robot}
        assert len(command["content_preview"]) == 120
        assert len(command["event_id"]) == 64
        around = await agent.answer("timeline", anchor=command["id"], before=1, after=50)
        assert around["anchor"]["content"].endswith("end")
        assert len(around["before"]) <= 1
        ids = [command["id"], *(row["id"] for row in around["before"])]
        read = await agent.answer("get_observations", ids=ids)
        assert [row["id"] for row in read] == ids
        assert read[0]["content"].endswith("end")

        (summary,) = await agent.answer("session_summaries", project="rooster")
        assert summary["session_id"] == SESSION
        assert summary["summary"]["learned"] == ["one pass is enough"]
        context = (await agent.answer("regenerate_context", project="rooster"))["context"]
        head, data, title, *_ = context.splitlines()
        assert head == f'<memory source="nmem" author="{cast.rover.pubkey}">'
        assert (data, title) == (DATA, "# nmem context")
        assert f"**faster dedupe** — by {by_robot}\n" in context
        assert context.endswith("\n</memory>")
        assert summary["author"] == by_robot
        recent = await agent.answer("recent_context", project="rooster")
        assert recent[0]["obs_type"] == "file_edit"  # of the file the best only
        assert len(recent) == 3
        trace = await agent.answer("session_trace", session_id=SESSION)
        (prompt,) = trace["prompts"]
        assert (prompt["source"], prompt["content"]) == ("user", "make the dedupe faster")
        assert prompt["observation_count"] == len(prompt["observations"]) == 4
        history = await agent.answer("file_history", file_path="/code/dedupe.py")
        (touched,) = history["sessions"]
        assert {row["obs_type"] for row in touched["touches"]} == {"file_read", "file_edit"}
        git = await agent.answer("git_file_summary", file_path="a.py", full=True)
        assert "\na.py: 1 commits over 0d, +1/-0. Recent:" in git["summary"]
        assert [commit["message"] for commit in git["commits"]] == ["Begin"]
        elsewhere = await agent.answer("git_file_summary", file_path="/code/dedupe.py")
        assert (elsewhere["source"], len(elsewhere["commits"])) == ("memory", 1)
        assert await agent.answer("current_stance") == {"error": "no classifier"}

        task = await agent.answer("queue_task", prompt="measure it", after="2h")
        assert (task["task_id"], task["project"], task["cwd"]) == (1, "rook", str(place.work))
        marker = await agent.answer("create_marker", text="one pass it is; token=abcdefgh1234")
        assert marker["is_sent"] is True
        assert (marker["project"], marker["obs_type"]) == ("rook", "marker")

    async with Nmem(told.url, cast.robot, tmp_path / "told.db", group=GROUP) as nmem:
        await nmem.sync()
        (found,) = await nmem.search("one pass it", obs_type="marker")
        assert found.content == "one pass it is; [REDACTED]"
        assert found.source_event == "AgentMarker"
        assert found.event_id == marker["event_id"]
    async with Client(told.url, cast.owner) as owner:
        (event,) = await owner.query({"ids": [marker["event_id"]]})
        assert event.pubkey == cast.rover.pubkey


BAD: Sequence[tuple[str, dict[str, object], str]] = [
    ("search", {}, "query is missing"),
    ("search", {"query": 7}, "query must be a string"),
    ("search", {"query": "a", "limit": "many"}, "limit must be an integer"),
    ("search", {"query": "a", "limit": 0}, "limit must be at least 1"),
    ("search", {"query": "a", "offset": -1}, "offset must be at least 0"),
    ("search", {"query": "a", "order_by": "blended"}, "did you mean orderBy?"),
    (
        "search",
        {"query": "a", "orderBy": "x"},
        'invalid orderBy: "x" (expected "relevance" or "blended")',
    ),
    ("recall", {}, "question is missing"),
    (
        "recall",
        {"question": "a", "system": "Z"},
        'invalid system: "Z" (expected one of A (aman), D (transcripts), S (snowclaw)',
    ),
    ("get_observations", {}, "ids is missing"),
    ("get_observations", {"ids": "1"}, "ids must be an array of integers"),
    ("get_observations", {"ids": []}, "ids array must not be empty"),
    ("get_observations", {"ids": list(range(51))}, "ids array must not exceed 50 elements"),
    ("timeline", {"anchor": 99}, "anchor observation not found"),
    ("timeline", {"anchor": 1, "before": 1.5}, "before must be an integer"),
    ("session_summaries", {"before": "yesterday"}, "before must be an integer"),
    ("regenerate_context", {}, "project is missing"),
    ("recent_context", {"limit": [1]}, "limit must be an integer"),
    ("session_trace", {"session_id": "nobody's"}, "session not found: nobody's"),
    ("file_history", {"file": "a"}, "did you mean file_path?"),
    ("git_file_summary", {"file_path": "/etc/passwd"}, "file_path is not in the git repository"),
    ("git_file_summary", {"file_path": "none.py"}, "file not found in history: none.py"),
    ("git_file_summary", {"file_path": "a.py", "full": "yes"}, "full must be a boolean"),
    ("queue_task", {"prompt": " "}, "prompt must not be empty"),
    ("queue_task", {"prompt": "a", "after": "soon"}, "after: 'soon' is not a time: use 5m, 2h,"),
    ("create_marker", {"text": ""}, "text must not be empty"),
    ("create_marker", {"text": "a", "project": 5}, "project must be a string"),
    ("current_stance", {"alpha": "fast"}, "alpha must be a number"),
]


@pytest.mark.parametrize("way", WAYS[-tries(2, 2, 1) :])
@pytest.mark.proves("M-29")
async def test_a_wrong_call_is_told_what_is_wrong_with_it(rookery: Rookery, way: Way) -> None:
    assert {tool for tool, _, _ in BAD} == set(TOOLS)
    async with workplace(cast.rover, rookery.url) as place, way(place) as agent:
        for tool, arguments, text in BAD:
            assert text in await agent.fault(tool, **arguments)
        with pytest.raises(MCPError, match="unknown tool: forget"):
            await agent.answer("forget")
        assert await agent.answer("search", query='NEAR( AND "') == []
        assert await agent.answer("search", query=" ") == []
        missing = await agent.answer("regenerate_context", project="none")
        assert missing["message"] == 'No context available for project "none".'


@pytest.mark.proves("M-13", "M-29")
async def test_what_hooks_told_on_one_machine_is_found_by_an_agent_on_another(
    rookery: Rookery,
) -> None:
    async with (
        workplace(cast.robot, rookery.url) as here,
        workplace(cast.rover, rookery.url) as there,
        workplace(cast.stranger, rookery.url) as outside,
    ):
        await here.hook("SessionStart", source="startup")
        await here.keeper_there()
        await here.hook("UserPromptSubmit", prompt="make the dedupe faster")
        await here.hook("PostToolUse", tool_name="Edit", tool_input={"file_path": "/w/dedupe.py"})
        await here.hook("PostToolUse", tool_name="Bash", tool_input={"command": "make dedupe"})
        await here.hook("Stop")
        await here.all_sent()
        async with over_stdio(there) as agent, over_stdio(outside) as outsider:
            (edit,) = await agent.answer("search", query="dedupe", obs_type="file_edit")
            around = await agent.answer("timeline", anchor=edit["id"])
            # What happened within one second may stand either way round.
            near = [*around["before"], *around["after"]]
            (command,) = [row for row in near if row["obs_type"] == "command"]
            (whole,) = await agent.answer("get_observations", ids=[command["id"]])
            assert (whole["content"], whole["project"]) == ("make dedupe", "rook")
            trace = await agent.answer("session_trace", session_id="s-1")
            assert [step["content"] for step in trace["prompts"]] == ["make the dedupe faster"]
            assert await outsider.answer("search", query="dedupe") == []
            assert await outsider.fault("session_trace", session_id="s-1") == (
                "session not found: s-1"
            )


async def test_an_outsider_finds_nothing(told: Rookery) -> None:
    async with workplace(cast.stranger, told.url) as place, over_stdio(place) as agent:
        assert (await agent.said("search", query="dedupe"))[0] == []
        assert (await agent.said("recent_context"))[0] == []
        assert await agent.fault("timeline", anchor=1) == "anchor observation not found"
        marker, remark = await agent.said("create_marker", text="let me in")
        assert marker["is_sent"] is False
        assert "restricted: only agents may write memory" in remark


@pytest.mark.proves("M-11", "M-29")
async def test_while_the_relay_is_away_the_cache_answers_and_says_so(told: Rookery) -> None:
    async with workplace(cast.rover, told.url) as place, over_stdio(place) as agent:
        assert len(await agent.answer("search", query="dedupe")) == 5
        await told.stop()
        async with until("its going is remarked on") as tries:
            async for _ in tries:
                found, remark = await agent.said("search", query="dedupe")
                assert len(found) == 5
                if remark:
                    break
        assert told.url.rstrip("/") in remark
        assert "this answer is from the local cache" in remark
        marker, remark = await agent.said("create_marker", text="written while it was away")
        assert marker["is_sent"] is False
        assert "this answer is from the local cache" in remark
        await told.start("--port", told.url.rsplit(":", 1)[1].rstrip("/"))
        async with until("what waited is sent") as tries:
            async for _ in tries:
                (found,), remark = await agent.said("search", query="away", obs_type="marker")
                if found["event_id"] is not None:
                    break
    async with Client(told.url, cast.robot) as robot:
        (event,) = await robot.query({"ids": [found["event_id"]]})
        assert event.pubkey == cast.rover.pubkey


@pytest.mark.proves("M-29")
async def test_idle_connections_without_the_token_keep_nobody_from_being_answered(
    rookery: Rookery,
) -> None:
    """Any user of the machine can open them: they used up the files of the process."""
    async with (
        workplace(cast.rover, rookery.url) as place,
        listening(place) as (url, token),
        aiohttp.ClientSession() as http,
        AsyncExitStack() as idle,
    ):
        port = int(url.split(":")[2].partition("/")[0])
        waiting = []
        for _ in range(200):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            idle.callback(writer.close)
            waiting.append(asyncio.create_task(reader.read()))
        ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accepts = {"Accept": "application/json, text/event-stream"}
        bearer = {"Authorization": f"Bearer {token}"}
        async with http.post(url, json=ask, headers=accepts | bearer) as response:
            assert response.status not in (401, 403)
        first = waiting[: 200 - 64]
        async with asyncio.timeout(ANSWER_S):
            await asyncio.wait(first)
        assert not any(each.done() for each in waiting[-30:])
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.proves("M-29")
async def test_over_http_only_who_has_the_token_and_is_on_this_machine_is_answered(
    rookery: Rookery,
) -> None:
    async with (
        workplace(cast.rover, rookery.url) as place,
        listening(place) as (url, token),
        listening(place) as (_, another),
        aiohttp.ClientSession() as http,
    ):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
        assert len(token) >= 32
        ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}

        async def status(**headers: str) -> int:
            async with http.post(url, json=ask, headers=headers) as response:
                text = await response.text()
                assert response.status == 200 or "create_marker" not in text
                return response.status

        bearer = {"Authorization": f"Bearer {token}"}
        assert await status() == 401
        assert await status(Authorization="Bearer wrong") == 401
        assert await status(Host="evil.example", **bearer) == 403
        assert await status(Origin="http://evil.example", **bearer) == 403
        assert await status(Origin="http://evil.example") == 403
        assert await status(Accept="application/json, text/event-stream", **bearer) not in (
            401,
            403,
        )
        assert another != token
        host, port = url.split("/")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"  # and nothing in the log
        writer.close()


async def test_a_port_that_is_taken_is_told(rookery: Rookery) -> None:
    async with workplace(cast.rover, rookery.url) as place, listening(place) as (url, _):
        port = url.split(":")[2].split("/")[0]
        code, _, error = await place.run("mcp", "--http", port)
    assert code == 1
    assert f"127.0.0.1:{port}" in error
    assert "Traceback" not in error
