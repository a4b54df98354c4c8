"""nmem's tools, by name (M-29).

Each returns a JSON value. Lists contain previews; `get_observations` returns full texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from relay.client.nmem.queries import Order
from relay.client.recall import SYSTEMS, letter_of
from relay.mcp import git
from relay.mcp.arguments import LARGEST, Kind, Parameter, ToolFault
from relay.mcp.freshness import Freshness
from relay.mcp.rows import by_session, hit, hits, recalled, said, summarised, traced, whole
from relay.mcp.schedule import time_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import Self

    from relay.client.nmem import Nmem

_MOST_IDS: Final = 50


class Place(NamedTuple):
    """Where the agent works."""

    folder: Path
    project: str


class Toolbox:
    """The memory behind the tools; used as `async with`, inside that of `nmem`."""

    def __init__(self, nmem: Nmem, place: Place, now: Callable[[], int]) -> None:
        """`now`: Unix seconds."""
        self.url = nmem.url
        """Of the relay."""
        self._nmem = nmem
        self._place = place
        self._now = now
        self._freshness = Freshness(nmem.url, self._sync)

    async def __aenter__(self) -> Self:
        await self._freshness.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._freshness.__aexit__()

    async def answer(self, tool: ToolInfo, arguments: dict[str, Any]) -> tuple[object, str]:
        """The result of a tool, and a remark on it, if any. `arguments` by keyword.

        Raises RookeryError, OSError.
        """
        match tool.effect:
            case Effect.READS_MEMORY:
                remark = await self._freshness.remark()
                return await tool.answer(self, **arguments), remark
            case Effect.WRITES_MEMORY:
                result = await tool.answer(self, **arguments)
                return result, await self._freshness.remark()
            case Effect.WRITES_LOCALLY | Effect.PURE:
                return await tool.answer(self, **arguments), ""
            case _:
                assert_never(tool.effect)

    async def _sync(self) -> str:
        synced = await self._nmem.sync()
        if not synced.refused:
            return ""
        reason = (await self._nmem.refused())[-1][1]
        refused = f"the relay refused {synced.refused} records of this machine"
        return f"{refused}:\n{said(reason, self.url)}"

    # -- search in three steps --------------------------------------------------------------------

    async def search(
        self,
        query: str,
        project: str | None,
        obs_type: str | None,
        limit: int,
        offset: int,
        order_by: str,
        before: int | None,
        after: int | None,
    ) -> object:
        try:
            order = Order(order_by)
        except ValueError:
            raise ToolFault(
                f'invalid orderBy: "{order_by}" (expected "relevance" or "blended")'
            ) from None
        found = await self._nmem.search(
            query,
            project=project,
            obs_type=obs_type,
            limit=limit,
            offset=offset,
            order_by=order,
            before=before,
            after=after,
        )
        return hits(found)

    async def timeline(self, anchor: int, before: int, after: int) -> object:
        observations = await self._nmem.timeline(anchor, before, after)
        at = next(number for number, found in enumerate(observations) if found.id == anchor)
        return {
            "anchor": whole(observations[at]),
            "before": hits(observations[:at]),
            "after": hits(observations[at + 1 :]),
        }

    async def get_observations(self, ids: list[int]) -> object:
        if not ids:
            raise ToolFault("ids array must not be empty")
        if len(ids) > _MOST_IDS:
            raise ToolFault(f"ids array must not exceed {_MOST_IDS} elements")
        return [whole(found) for found in await self._nmem.get(int(each) for each in ids)]

    async def recall(self, question: str, system: str | None, limit: int) -> object:
        letter = "" if system is None else letter_of(system)
        if letter is None:
            names = ", ".join(f"{each} ({known.name})" for each, known in SYSTEMS.items())
            raise ToolFault(f'invalid system: "{system}" (expected one of {names})')
        found = await self._nmem.recall(question, systems=letter, limit=limit)
        return [recalled(hit, self._nmem.pubkey) for hit in found.hits]

    # -- sessions and context ---------------------------------------------------------------------

    async def session_summaries(
        self, project: str | None, limit: int, before: int | None, after: int | None
    ) -> object:
        found = await self._nmem.summaries(project, limit, before=before, after=after)
        authors = await self._nmem.session_authors(found)
        return [summarised(session, authors.get(session.id, "")) for session in found]

    async def session_trace(self, session_id: str, before: int | None, after: int | None) -> object:
        session_id = await self._nmem.session_id(session_id)
        trace = await self._nmem.trace(session_id, before=before, after=after)
        authors = await self._nmem.session_authors(trace[:1])
        return traced(*trace, authors.get(session_id, ""))

    async def recent_context(
        self, project: str | None, limit: int, before: int | None, after: int | None
    ) -> object:
        return hits(await self._nmem.recent(project, limit, before=before, after=after))

    async def regenerate_context(self, project: str, before: int | None) -> object:
        text = await self._nmem.context(project, before)
        if not text:
            return {"context": "", "message": f'No context available for project "{project}".'}
        return {"context": text}

    async def current_stance(self, session_id: str | None, alpha: float) -> object:
        # A stance is computed by classifiers, and there are none.
        return {"error": "no classifier"}

    # -- files ------------------------------------------------------------------------------------

    async def file_history(
        self, file_path: str, limit: int, before: int | None, after: int | None
    ) -> object:
        found = await self._nmem.file_history(file_path, limit, before=before, after=after)
        return {"file_path": file_path, "sessions": by_session(found)}

    async def git_file_summary(self, file_path: str, max_commits: int, *, full: bool) -> object:
        """History of the file in the agent's repository; otherwise from memory."""
        try:
            path, commits = await git.commits_in(self._place.folder, file_path, max_commits)
        except git.NotInGit as fault:
            found = await self._nmem.commits_of(file_path, max_commits)
            if not found:
                raise
            return {"source": "memory", "why": str(fault), "commits": hits(found)}
        summary = git.summary_of(path, commits, self._now())
        result: dict[str, object] = {"source": "git", "summary": summary}
        return result | git.history_of(path, commits) if full else result

    # -- writing ----------------------------------------------------------------------------------

    async def queue_task(
        self, prompt: str, project: str | None, cwd: str | None, after: str | None
    ) -> object:
        if not prompt.strip():
            raise ToolFault("prompt must not be empty")
        not_before = None if after is None else time_of(after, self._now())
        project = self._place.project if project is None else project
        folder = str(self._place.folder) if cwd is None else cwd
        number = await self._nmem.queue_task(prompt, project, folder, not_before)
        return {
            "task_id": number,
            "status": "pending",
            "project": project,
            "cwd": folder,
            "not_before": not_before,
        }

    async def create_marker(self, text: str, project: str | None) -> object:
        if not text.strip():
            raise ToolFault("text must not be empty")
        self._nmem.kept_out.clear()
        number = await self._nmem.mark(text, self._place.project if project is None else project)
        kept_out = [str(each) for each in self._nmem.kept_out]
        await self._freshness.after_a_write()
        (found,) = await self._nmem.get([number])
        marked = hit(found) | {"project": found.project, "is_sent": found.event_id is not None}
        return marked | ({"kept_out": kept_out} if kept_out else {})


class Effect(Enum):
    """What a call reads or writes."""

    READS_MEMORY = "reads the memory after synchronising it"
    PURE = "reads nothing"
    WRITES_MEMORY = "adds to the memory, here and at the relay"
    WRITES_LOCALLY = "writes on this machine only"

    @property
    def is_reading(self) -> bool:
        return self in (Effect.READS_MEMORY, Effect.PURE)


@dataclass(frozen=True, slots=True)
class ToolInfo:
    name: str
    answer: Callable[..., Awaitable[object]]
    """A method of Toolbox; takes the parameters as keywords."""
    description: str
    parameters: tuple[Parameter, ...]
    effect: Effect = Effect.READS_MEMORY


_PROJECT: Final = Parameter("project", Kind.TEXT, "Only this project; default: all.")
_BEFORE: Final = Parameter(
    "before",
    Kind.INTEGER,
    "Only records before this time, in Unix seconds.",
    minimum=0,
    maximum=LARGEST,
)
_AFTER: Final = Parameter(
    "after",
    Kind.INTEGER,
    "Only records at or after this time, in Unix seconds.",
    minimum=0,
    maximum=LARGEST,
)
_PATH: Final = Parameter("file_path", Kind.TEXT, "Path of the file, as recorded.", is_required=True)
_HERE: Final = Parameter("project", Kind.TEXT, "Project; default: that of the current folder.")


def _limit(default: int, maximum: int) -> Parameter:
    description = f"Most results; at most {maximum}."
    return Parameter(
        "limit", Kind.INTEGER, description, default=default, minimum=1, maximum=maximum
    )


def _number(name: str, description: str, default: int, maximum: int, minimum: int = 0) -> Parameter:
    description = f"{description}; at most {maximum}."
    return Parameter(
        name, Kind.INTEGER, description, default=default, minimum=minimum, maximum=maximum
    )


TOOLS: Final = (
    ToolInfo(
        "search",
        Toolbox.search,
        "Find observations and prompts of earlier sessions by words. Returns ids (negative: of a"
        " prompt) and previews, best first;"
        " use timeline for the context of a hit, get_observations for its full text.",
        (
            Parameter(
                "query",
                Kind.TEXT,
                'Words; supports AND, OR, NOT, "a phrase" and prefix*.',
                is_required=True,
            ),
            _PROJECT,
            Parameter("obs_type", Kind.TEXT, "Only this type: file_edit, marker, prompt, …"),
            _limit(20, 100),
            Parameter(
                "offset",
                Kind.INTEGER,
                "Number of hits to skip.",
                default=0,
                minimum=0,
                maximum=LARGEST,
            ),
            Parameter(
                "orderBy",
                Kind.TEXT,
                "relevance: by words only; blended: also by age and type.",
                default="relevance",
                choices=("relevance", "blended"),
            ),
            _BEFORE,
            _AFTER,
        ),
    ),
    ToolInfo(
        "recall",
        Toolbox.recall,
        "Ask all memory at the relay: sessions, observations, preferences, notes and claims, by a"
        " question in words. Best first; a claim with `superseded_by` is out of date. Needs the"
        " relay.",
        (
            Parameter(
                "question",
                Kind.TEXT,
                'A question or words; "in May" or "last week" prefer that time.',
                is_required=True,
            ),
            Parameter(
                "system",
                Kind.TEXT,
                "Only aman (assistant), transcripts (conversations), snowclaw (people, groups),"
                " nmem (coding sessions) or anamnesis (claims); or its letter.",
                choices=(*(system.name for system in SYSTEMS.values()), *SYSTEMS),
            ),
            _limit(10, 50),
        ),
    ),
    ToolInfo(
        "get_observations",
        Toolbox.get_observations,
        "Read observations and prompts in full, in the order of the given ids.",
        (Parameter("ids", Kind.IDS, f"At most {_MOST_IDS} ids.", is_required=True),),
    ),
    ToolInfo(
        "timeline",
        Toolbox.timeline,
        "Observations before and after an observation, oldest first, as previews.",
        (
            Parameter("anchor", Kind.INTEGER, "Id of the observation.", is_required=True),
            _number("before", "Number of earlier ones", 5, 50),
            _number("after", "Number of later ones", 5, 50),
        ),
    ),
    ToolInfo(
        "session_summaries",
        Toolbox.session_summaries,
        "Summaries of earlier sessions: intent, what was learned and completed, next steps. Newest"
        " first; times are session starts.",
        (_PROJECT, _limit(10, 50), _BEFORE, _AFTER),
    ),
    ToolInfo(
        "regenerate_context",
        Toolbox.regenerate_context,
        "The context an agent gets at the start of a session in the project, now or at a past"
        " time.",
        (Parameter("project", Kind.TEXT, "The project.", is_required=True), _BEFORE),
    ),
    ToolInfo(
        "recent_context",
        Toolbox.recent_context,
        "The highest ranked observations by age, type and project, as previews; one per file.",
        (_PROJECT, _limit(30, 100), _BEFORE, _AFTER),
    ),
    ToolInfo(
        "session_trace",
        Toolbox.session_trace,
        "One session in order: its prompts, each with the observations that followed. A long one is"
        " truncated; continue with `after` = `more_after`.",
        (
            Parameter("session_id", Kind.TEXT, "Session id, or its beginning.", is_required=True),
            _BEFORE,
            _AFTER,
        ),
    ),
    ToolInfo(
        "file_history",
        Toolbox.file_history,
        "Observations of a file, grouped by session, newest first.",
        (_PATH, _BEFORE, _AFTER, _limit(10, 50)),
    ),
    ToolInfo(
        "git_file_summary",
        Toolbox.git_file_summary,
        "A file's git history in a few sentences: commits, churn, co-changed files. `full`: also"
        " commit by commit.",
        (
            _PATH,
            _number("max_commits", "Number of commits", 50, 500, minimum=1),
            Parameter("full", Kind.FLAG, "Include every commit.", default=False),
        ),
    ),
    ToolInfo(
        "queue_task",
        Toolbox.queue_task,
        "Store a task for later on this machine. Returns its id; nothing is run.",
        (
            Parameter("prompt", Kind.TEXT, "The task.", is_required=True),
            _HERE,
            Parameter("cwd", Kind.TEXT, "Working folder; default: the current one."),
            Parameter("after", Kind.TEXT, "Earliest time: 5m, 2h, 1d, tomorrow, tonight or ISO."),
        ),
        Effect.WRITES_LOCALLY,
    ),
    ToolInfo(
        "create_marker",
        Toolbox.create_marker,
        "Store a decision or conclusion permanently. It is signed, and later sessions can find it.",
        (Parameter("text", Kind.TEXT, "Text to store.", is_required=True), _HERE),
        Effect.WRITES_MEMORY,
    ),
    ToolInfo(
        "current_stance",
        Toolbox.current_stance,
        "The working style of a session, by classifiers. Not available here.",
        (
            Parameter("session_id", Kind.TEXT, "Session id; default: the current session."),
            Parameter(
                "alpha",
                Kind.NUMBER,
                "Weight of the newest observation, 0 to 1.",
                default=0.08,
                minimum=0,
                maximum=1,
            ),
        ),
        Effect.PURE,
    ),
)
"""In the order of M-29."""
