"""What an admin writes: policies, settings, files to import, requests on the control socket."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import policies
from relay.cli.data_folder import LocalFolder
from relay.cli.import_lines import Place
from relay.cli.importing import import_events
from relay.config import load_config
from relay.errors import ConfigFaults
from relay.facts import Origin
from relay.memory.systems import MEMORY_SYSTEMS
from relay.server.control import ControlServer
from tests.fuzz.effort import share
from tests.fuzz.relay_in_memory import SETTINGS, RelayInMemory
from tests.fuzz.thrown import NOTES, bent_events, events, frames, now, weighed
from tests.harness.patience import ANSWER_S
from tests.unit.nostr.strategies import json_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.fuzz.effort import Tally

T = TypeVar("T")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# -- TOML ------------------------------------------------------------------------------------------

HOME = Path(policies.__file__).parent
_POLICIES = [path.read_text() for path in sorted(HOME.glob("*/*.toml"))] + [
    'include = ["packaged"]\n[actors]\nowners = ["' + "a" * 64 + '"]\nallowed = []\n',
    '[[rule]]\nname = "a"\nmatch = { kinds = ["30000-39999"], d_prefix = "x:" }\nrequire = ["d"]\n'
    '[[rule]]\nname = "b"\nmatch = { kinds = [1] }\npow = 8\nreject = "work"\n'
    '[[retention]]\nname = "c"\nmatch = { kinds = [30078] }\nkeep = "first"\n'
    '[memory]\ntie = "high"\n[limits]\nmax_event_tags = 10\n',
]
_CONFIGS = [
    SETTINGS,
    """
[relay]
name = "Rookery"
description = ""
contact = "mailto:a@example.org"
icon = "https://example.org/i.png"
url = "wss://relay.example.org:8443/relay"
[server]
host = "127.0.0.1"
port = 7777
tls_cert = "cert.pem"
tls_key = "key.pem"
trusted_proxies = ["127.0.0.0/8"]
metrics_from = ["::1/128"]
compression = true
[limits]
max_message_length = 524288
max_subscriptions = 200
default_limit = 500
max_limit = 500
[storage]
backend = "sqlite"
synchronous = "FULL"
index_tags = ["hk"]
prefix_d_kinds = [30078, 78]
[log]
level = "info"
format = "json"
""",
]

_TOKEN = re.compile(r'"[^"\n]*"|[\w.-]+|[\[\]{}=,]')
_TOKENS = st.sampled_from(
    [
        '""',
        '"x"',
        '"anyone"',
        '"9-5"',
        '"10000-"',
        '"wss://x"',
        '"é\\u0000"',
        f'"{"a" * 300}"',
        "1",
        "-1",
        "0",
        "9" * 30,
        "9" * 5000,
        "1.5",
        "nan",
        "inf",
        "true",
        "false",
        "[]",
        "{}",
        "[1, 'a']",
        "[[[1]]]",
        "{ kinds = [1] }",
        "{ a.b.c = 1 }",
        "2024-02-30",
        "1979-05-27T07:32:00Z",
        "07:32:00",
        "[",
        "]",
        "{",
        "}",
        "=",
        ",",
        "#",
        "'",
        '"""',
        "[rule]",
        "[[rule]]",
        "[a.b]",
        "name",
        "kinds",
        "match",
        "h",
        "write",
        "read",
        "enabled",
        "include",
        "url",
        "port",
        "x",
        "\x00",
        "[" * 3000,
        "{a=" * 600,
        '"../x"',
        '"x/y"',
        '"10.0.0.0/33"',
        '"00-base"',
        "include = ['00-fuzz']",
    ]
)
_EDITS = st.lists(
    st.tuples(
        st.sampled_from(["swap", "swap", "swap", "insert", "drop", "twice", "cut"]),
        st.integers(0, 10**4),
        _TOKENS,
    ),
    max_size=4,
)


def _edited(text: str, edits: Sequence[tuple[str, int, str]]) -> str:
    for how, where, token in edits:
        found = list(_TOKEN.finditer(text))
        if not found:
            return token
        at = found[where % len(found)]
        start, end = at.span()
        line = text.rfind("\n", 0, start) + 1
        line_end = text.find("\n", end) + 1 or len(text)
        match how:
            case "swap":
                text = text[:start] + token + text[end:]
            case "insert":
                text = f"{text[:line]}{token}\n{text[line:]}"
            case "drop":
                text = text[:line] + text[line_end:]
            case "twice":
                text = text[:line_end] + text[line:line_end] + text[line_end:]
            case _:
                text = text[:start]
    return text


def _bytes_of(base: list[str]) -> st.SearchStrategy[bytes]:
    texts = st.builds(_edited, st.sampled_from(base), _EDITS).map(str.encode)
    torn = st.builds(
        lambda text, at, piece: text[: at % (len(text) + 1)] + piece + text[at % (len(text) + 1) :],
        texts,
        st.integers(0, 5000),
        st.sampled_from([b"\xff", b"\x00", b"\r", b"\xed\xa0\x80"]),
    )
    return weighed((9, texts), (1, torn))


def _found(load: Callable[[], T]) -> T | None:
    """None: it had faults, and said which. Anything else that is raised is a fault of ours."""
    try:
        return load()
    except ConfigFaults as wrong:
        faults = wrong.faults
    assert faults
    return None


def test_a_policy_file_is_taken_or_has_faults(tally: Tally, tmp_path: Path) -> None:
    @share(1)
    @given(text=_bytes_of(_POLICIES))
    @example(text=b"a = " + b"9" * 5000)
    @example(text=b"a = " + b"[" * 3000)
    @example(text=f'include = ["{"x" * 300}"]'.encode())
    def load(text: bytes) -> None:
        tally.example()
        (tmp_path / "00-fuzz.toml").write_bytes(text)
        policy = _found(lambda: policies.load(tmp_path, MEMORY_SYSTEMS))
        if policy is not None:
            tally.counts["taken"] += 1
            for note in NOTES:
                policy.screen(note, now(), Origin.WIRE)
                policy.keep.keep_of(note)

    load()
    if tally.is_telling:
        assert tally.counts["taken"], tally


def test_a_settings_file_is_taken_or_has_faults(tally: Tally, tmp_path: Path) -> None:
    file = tmp_path / "rookery.toml"

    @share(3)
    @given(text=_bytes_of(_CONFIGS))
    @example(text=b"a = " + b"9" * 5000)
    @example(text=b"a = " + b"[" * 3000)
    @example(text=b'[relay]\nurl = "ws://."')
    def load(text: bytes) -> None:
        tally.example()
        file.write_bytes(text)
        if _found(lambda: load_config(file)) is not None:
            tally.counts["taken"] += 1

    load()
    if tally.is_telling:
        assert tally.counts["taken"], tally


# -- import, and the control socket ----------------------------------------------------------------

_lines = weighed(
    (6, events.map(lambda event: event.raw)),
    (2, bent_events.map(json.dumps).map(str.encode)),
    (1, frames.map(lambda frame: frame.data)),
    (1, st.sampled_from([b"", b" ", b"\r", b"\x00", b"null", b"[" * 3000, b"{", b"\xef\xbb\xbf"])),
)


def test_every_line_of_an_import_is_accounted_for(tally: Tally) -> None:
    with asyncio.Runner() as runner:
        relay = runner.run(RelayInMemory().__aenter__())

        @share(2)
        @given(lines=st.lists(_lines, max_size=6))
        def bring(lines: list[bytes]) -> None:
            tally.example()
            file = b"\n".join(lines)
            place, said = Place(), list[str]()
            runner.run(
                import_events(
                    LocalFolder(relay.services),
                    io.BytesIO(file),
                    "file",
                    Origin.IMPORT,
                    place,
                    report=said.append,
                    note=lambda _: None,
                    pauses_s=(),
                )
            )
            done = place.tally
            wanted = [
                line
                for number, line in enumerate(file.split(b"\n"))
                if (line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line).strip()
            ]
            assert done.read == len(wanted), (said, done)
            assert done.refused == len(said), (said, done)
            assert place.offset == len(file)
            assert not relay.faults.lines, relay.faults.lines
            tally.counts["lines"] += done.read
            tally.counts["stored"] += done.stored

        try:
            bring()
        finally:
            runner.run(relay.__aexit__())
    if tally.is_telling:
        assert tally.counts["stored"] > tally.counts["lines"] / 10, tally


def _submission(rows: list[bytes], origin: str, off: int) -> bytes:
    head = {"do": "submit", "origin": origin, "sizes": [len(row) + off for row in rows]}
    return b"\n".join((orjson.dumps(head), *rows, b""))


_requests = weighed(
    (
        3,
        st.builds(
            _submission,
            st.lists(_lines, max_size=3),
            st.sampled_from(["IMPORT", "IMPORT", "WIRE", "TRUST", ""]),
            weighed((6, st.just(0)), (1, st.integers(-3, 3))),
        ),
    ),
    (2, st.just(b'{"do":"head"}\n')),
    (
        2,
        st.sampled_from(
            [
                b'{"do":"events","filter":{"kinds":[1]}}\n',
                b'{"do":"events","filter":{}}\n',
                b'{"do":"events","filter":{"kinds":["x"]}}\n',
                b'{"do":"events"}\n',
                b"\n",
                b'{"do":"submit","origin":"IMPORT","sizes":[9223372036854775807]}\n',
                b'{"do":"submit","origin":"IMPORT","sizes":[-1]}\n',
                b"[" * 3000 + b"\n",
            ]
        ),
    ),
    (1, json_values.map(lambda value: json.dumps(value).encode() + b"\n")),
    (1, st.binary(max_size=30)),
)


def test_the_control_socket_answers_or_says_why_not(tally: Tally, tmp_path: Path) -> None:
    path = tmp_path / "control.sock"

    async def ask(requests: list[bytes]) -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            async with asyncio.timeout(ANSWER_S):
                writer.writelines(requests)
                writer.write_eof()
                return await reader.read()
        finally:
            writer.close()

    with asyncio.Runner() as runner:
        relay = runner.run(RelayInMemory().__aenter__())
        server = runner.run(ControlServer(path, LocalFolder(relay.services)).__aenter__())

        @share(1)
        @given(requests=st.lists(_requests, min_size=1, max_size=3))
        def converse(requests: list[bytes]) -> None:
            tally.example()
            for line in runner.run(ask(requests)).splitlines():
                answer = orjson.loads(line)
                tally.counts[answer.get("is", "rows")] += 1
            assert not relay.faults.lines, relay.faults.lines

        try:
            converse()
        finally:
            runner.run(server.__aexit__())
            runner.run(relay.__aexit__())
    if tally.is_telling:
        for answer in ("results", "page", "rows", "head", "failed"):
            assert tally.counts[answer], tally
