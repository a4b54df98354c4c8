"""The terminal pictures of README.md: real commands, their real output, as SVG.

`python -m tests.pictures` (`make pictures`) writes docs/pictures/*.svg. Each picture is a list of
command lines that run one after the other beside one relay; test_pictures.py runs them again.
"""

from __future__ import annotations

import asyncio
import html
import os
import re
import shlex
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Final, NamedTuple

from tests import cast
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery
from tests.harness.screen import on_screen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

FOLDER: Final = Path(__file__).parents[2] / "docs" / "pictures"
_WIDTH: Final = 100
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_CELL: Final = 12.2
"""Width of a character in SVG, as rich draws it."""
_BAR: Final = re.compile(r"\x1b\[\?25l.*?\x1b\[\?25h(?:\r|\x1b\[\d*[AK])*", re.DOTALL)
"""A progress bar, which is removed when it is done: from hiding the cursor to showing it."""
_CLIENT: Final = """\
relay          = "{url}"
key_file       = "ada.nsec"
agent_key_file = "robot.nsec"

[names]
robot = "{robot}"
bob   = "{bob}"
"""


class Line(NamedTuple):
    """One command of a picture."""

    text: str
    by: str = "ada"
    """Whose key signs; ada is the owner."""


PICTURES: Final[dict[str, Sequence[Line]]] = {
    "first-message": (
        Line('rookery group create tea --name "Tea house"'),
        Line('rookery group say tea "The kettle is on."'),
        Line("rookery group read tea"),
    ),
    "people": (
        Line("rookery group add tea bob"),
        Line("rookery group add tea robot --role agent"),
        Line("rookery group show tea"),
    ),
    "memory": (
        Line("rookery memory set npub:robot --note 'answers in one sentence'"),
        Line("rookery anamnesis remember 'The green kettle is for oolong only'", by="robot"),
        Line("rookery memory search kettle"),
    ),
    "operation": (
        Line("rookery group say tea 'Cheap watches!'", by="mallory"),
        Line("rookery policy log -n 1 --data team"),
        Line("rookery ban bob --reason spam"),
        Line("rookery ban --list"),
        Line("rookery unban bob"),
        Line("rookery backup backups/ --data team"),
        Line("rookery doctor --data team"),
    ),
}


class Shown(NamedTuple):
    command: str
    output: str
    """With ANSI colours."""


@asynccontextmanager
async def demo(folder: Path) -> AsyncIterator[dict[str, str]]:
    """A relay for the pictures; the environment of its commands."""
    home = folder / "home"
    config = home / ".config" / "rookery"
    config.mkdir(parents=True)
    (folder / "backups").mkdir()
    for name, key in (
        ("ada", cast.owner),
        ("bob", cast.bob),
        ("robot", cast.robot),
        ("mallory", cast.stranger),
    ):
        (config / f"{name}.nsec").write_text(key.nsec)
        (config / f"{name}.nsec").chmod(0o600)
    async with Rookery(folder / "team") as relay:
        await relay.init("--owner", cast.owner.npub, "--agent", cast.robot.npub)
        await relay.start()
        (config / "client.toml").write_text(
            _CLIENT.format(url=relay.url, robot=cast.robot.npub, bob=cast.bob.npub)
        )
        env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        env |= {"HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8", "TZ": "UTC"}
        process = await start_rookery("profile", "set", "--name", "Ada", stdout=PIPE, env=env)
        assert await process.wait() == 0
        yield env
        assert await relay.stop() == 0


async def shown(folder: Path, env: dict[str, str], lines: Sequence[Line]) -> list[Shown]:
    """What the commands print on a terminal, in the folder of the demo."""
    found = []
    for line in lines:
        words = shlex.split(line.text)
        assert words[0] == "rookery"
        own = dict(env)
        if line.by != "ada":
            key = Path(env["HOME"]) / ".config" / "rookery" / f"{line.by}.nsec"
            own["ROOKERY_KEY"] = key.read_text()
        async with on_screen(*words[1:], columns=_WIDTH, env=own, cwd=folder) as screen:
            await screen.ended()
            text = _BAR.sub("", screen.text).replace("\r\n", "\n")
            found.append(Shown(_prompt(line), text))
    return found


def _prompt(line: Line) -> str:
    return f"{line.by}$ {line.text}"


def drawn(name: str, parts: Sequence[Shown]) -> str:
    """A terminal window as SVG."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI
    from rich.text import Text

    # No file and no width of the terminal in which this runs.
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=_WIDTH, file=nowhere, force_terminal=True)
        for number, part in enumerate(parts):
            if number:
                console.print()
            console.print(Text(part.command, "bold"), highlight=False)
            console.print(Text.from_ansi(part.output.rstrip("\n")), highlight=False)
        svg = console.export_svg(title="rookery", theme=MONOKAI, unique_id=name)
    # Nothing is loaded from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


def lines_in(svg: str) -> list[str]:
    """The lines of text of a picture."""
    rows: dict[int, dict[float, str]] = {}
    for x, number, text in re.findall(
        r'<text [^>]*\bx="([\d.]+)"[^>]*clip-path="url\(#[\w-]+-line-(\d+)\)">(.*?)</text>', svg
    ):
        rows.setdefault(int(number), {})[float(x)] = html.unescape(text).replace("\xa0", " ")
    lines = []
    for number in range(max(rows, default=-1) + 1):
        line = ""
        for x, text in sorted(rows.get(number, {}).items()):
            line = line.ljust(round(x / _CELL)) + text
        lines.append(line.rstrip())
    return lines


def masked(lines: Sequence[str]) -> list[str]:
    """Without what differs in each run: ids, times, sizes, addresses."""
    changing = (
        (r"npub1[0-9a-z]{6,}…?", "NPUB"),
        (r"naddr1[0-9a-z]+", "NADDR"),
        (r"\b[0-9a-f]{8,64}\b", "HEX"),
        (r"\d[\d.,:/-]*", "0"),
        (r"\b0 (?:bytes|[kMG]B)\b", "0 B"),
        (r"\s+", " "),
    )
    text = _COLOUR.sub("", " ".join(lines))
    for pattern, name in changing:
        text = re.sub(pattern, name, text)
    return text.strip().split()


async def made(folder: Path) -> dict[str, str]:
    """Name → SVG of every picture."""
    found = {}
    async with demo(folder) as env:
        for name, lines in PICTURES.items():
            found[name] = drawn(name, await shown(folder, env, lines))
    return found


def write(folder: Path) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, svg in asyncio.run(made(folder)).items():
        (FOLDER / f"{name}.svg").write_text(svg, "utf-8")
