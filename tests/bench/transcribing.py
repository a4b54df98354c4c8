"""What sessions of coding agents cost: a tree of files sent to a relay, and each written again."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from relay.client import Transcripts
from relay.client.transcripts.files import session_file
from relay.memory.transcripts.plan import Plan
from relay.nostr.keys import SecretKey
from tests.bench import corpus, wire
from tests.bench.loads import LoadFault, Measure
from tests.bench.relays import Preset, Running, Target

if TYPE_CHECKING:
    from tests.bench.rows import Bench

AGENT = SecretKey(corpus.secret(0))
MADE_BY = 1  # counted up when `session` changes
HOME = "/home/dev/projects/rook"
LINES = 1000  # of a session; 2.6 MB
MB = 1e6


def session(number: int) -> Iterator[bytes]:
    """The lines of one file, as claude-code writes them: 0.5 to 10 KB, 2.6 KB in the middle."""
    chance, text = random.Random(f"{MADE_BY} {number}"), corpus.prose()

    def said(most: int) -> str:
        length = min(int(chance.expovariate(2 / most)), most)
        start = chance.randrange(len(text) - most)
        return f"{HOME}/src/{number}.py: {text[start : start + length]}"

    for at in range(LINES):
        common = {
            "parentUuid": f"u-{at - 1}",
            "isSidechain": False,
            "userType": "external",
            "cwd": HOME,
            "sessionId": f"bench-{number}",
            "version": "2.1.42",
            "gitBranch": "main",
            "uuid": f"u-{at}",
            "timestamp": f"2026-02-09T20:{at // 60 % 60:02}:{at % 60:02}.000Z",
        }
        match at % 3:
            case 0:
                written = {"file_path": f"{HOME}/x.py", "content": said(4000)}
                tool: dict[str, object] = {
                    "type": "tool_use",
                    "id": f"toolu_{at}",
                    "name": "Write",
                    "input": written,
                }
                line = _by_assistant([{"type": "text", "text": said(1000)}, tool])
                line["requestId"] = f"req_{at}"
            case 1:
                output = said(5000)
                given = {"tool_use_id": f"toolu_{at - 1}", "type": "tool_result", "content": output}
                line = {
                    "type": "user",
                    "message": {"role": "user", "content": [given]},
                    "toolUseResult": {"content": output[:2000]},
                }
            case _:
                line = _by_assistant([{"type": "text", "text": said(4000)}])
        line = {**common, **line}
        yield json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _by_assistant(content: list[dict[str, object]]) -> dict[str, object]:
    usage = {"input_tokens": 12, "cache_read_input_tokens": 4500, "output_tokens": 45}
    message = {"model": "claude-opus-4-6", "role": "assistant", "content": content, "usage": usage}
    return {"type": "assistant", "message": message}


def importing(bench: "Bench", target: Target) -> Measure:
    """MB/s into a relay that has none of it; beside it, MB/s when it has all of it."""
    files = _tree(bench)
    with bench.fresh(target, Preset.GROUP) as relay:
        first, again = asyncio.run(_imported(_url(relay), files))
    return Measure(rate=first, beside=again)


def exporting(bench: "Bench", target: Target) -> Measure:
    """MB/s out of a relay, each file compared with what went in."""
    files = _tree(bench)
    with bench.fresh(target, Preset.GROUP) as relay:
        return Measure(rate=asyncio.run(_exported(_url(relay), files)))


def _url(relay: Running) -> str:
    return f"ws://{wire.HOST}:{relay.port}"


def _tree(bench: "Bench") -> list[Path]:
    """Files of some MB together, kept in the cache."""
    count = max(bench.scale.archive // 2600, 1)  # 38 files, 100 MB; for a quick run 1 of 2.6 MB
    tree = bench.cache / f"sessions-{MADE_BY}"
    tree.mkdir(exist_ok=True)
    files = []
    for number in range(count):
        path = tree / f"bench-{number}.jsonl"
        if not path.exists():
            fresh = path.with_suffix(".part")
            fresh.write_bytes(b"".join(session(number)))
            fresh.rename(path)
        files.append(path)
        bench.progress("writing sessions", number + 1, count)
    return files


async def _imported(url: str, files: list[Path]) -> tuple[float, float]:
    size = sum(path.stat().st_size for path in files) / MB
    async with Transcripts(url, AGENT) as transcripts:
        rates = []
        for is_new in (True, False):
            began = time.perf_counter()
            for path in files:
                result = await transcripts.import_session(session_file(path), Plan())
                told = result.stored if is_new else result.duplicates
                if told != result.notes + result.archive or result.lines != LINES:
                    raise LoadFault(f"{path.name}: {result}")
            rates.append(size / (time.perf_counter() - began))
    return rates[0], rates[1]


async def _exported(url: str, files: list[Path]) -> float:
    size = sum(path.stat().st_size for path in files) / MB
    async with Transcripts(url, AGENT) as transcripts:
        for path in files:
            await transcripts.import_session(session_file(path), Plan())
        took = 0.0
        for path in files:
            began = time.perf_counter()
            data = await transcripts.export(path.stem)
            took += time.perf_counter() - began
            if data != path.read_bytes():
                raise LoadFault(f"{path.name} came out another than it went in")
    return size / took
