"""`rookery anamnesis`, against a fake relay: output and exit codes."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from relay.memory.anamnesis.checks import content_hash
from relay.memory.fence import DATA
from tests.cast import alice, robot, rover
from tests.harness.fake_relay import FakeRelay, refusing
from tests.unit.cli.terminal import Rookery, command_line
from tests.unit.memory.anamnesis.making import NOON, superseded, told, vouched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]

A, B, C = (content_hash(text) for text in ("a", "b", "c"))
DOCUMENT = {
    "content": "a",
    "author": {"id": "x", "name": "X"},
    "timestamp": "2026-02-02T16:00:00Z",
    "content_hash": A,
    "memory_type": "insight",
    "confidence": 0.7,
    "tags": ["t"],
}


@pytest.fixture
async def relay() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as relay:
        relay.challenges_at_once = True
        yield relay


@pytest.fixture
def rookery(relay: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rookery:
    return command_line("anamnesis", relay, robot, tmp_path, monkeypatch)


def write_settings(folder: Path, text: str) -> None:
    path = folder / ".config/rookery/client.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f"[anamnesis]\n{text}\n")


# -- telling --------------------------------------------------------------------------------------


async def test_remember_prints_the_hash_and_reports_duplicates(
    rookery: Rookery, relay: FakeRelay, capsys: Capture
) -> None:
    await relay.publish(told(rover, "b"))
    options = (
        "--type",
        "insight",
        "--parent",
        B[:8],
        "--parent",
        C,
        "--tag",
        "t",
        "--tag",
        "u",
        "--confidence",
        "0.7",
        "--anchor",
        "https://a.example",
        "--group",
        "den",
        "--author-id",
        "r2",
        "--author-name",
        "R2",
    )
    assert await rookery("remember", "a", *options) == 0
    assert capsys.readouterr() == (f"{A}\n", "")
    event = relay.events[-1]
    document = json.loads(event.content)
    assert document["author"] == {"id": "r2", "name": "R2"}
    assert document["parent_refs"] == [B, C]
    assert (document["memory_type"], document["confidence"]) == ("insight", 0.7)
    assert document["tags"] == ["t", "u"]
    assert (event.tag("r"), event.tag("h")) == ("https://a.example", "den")
    assert await rookery("remember", "a") == 0
    assert capsys.readouterr() == (f"{A}\n", "duplicate\n")
    assert await rookery("remember", "a", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "hash": A,
        "outcome": "duplicate",
        "id": event.id,
    }


@pytest.mark.proves("X-03")
async def test_content_over_ten_kilobytes_warns(rookery: Rookery, capsys: Capture) -> None:
    text = "é" * 5_120
    assert await rookery("remember", text) == 0
    assert capsys.readouterr().err == ""
    assert await rookery("remember", text + "a") == 0
    out, err = capsys.readouterr()
    assert out == f"{content_hash(text + 'a')}\n"
    assert err == "warning: content is over 10 KB\n"


async def test_the_author_is_read_from_client_toml(
    rookery: Rookery, relay: FakeRelay, tmp_path: Path
) -> None:
    write_settings(tmp_path, 'author_id = "r2"\nauthor_name = "Robot 2"')
    await rookery("remember", "a")
    await rookery("vouch", B)
    assert json.loads(relay.events[0].content)["author"] == {"id": "r2", "name": "Robot 2"}
    assert json.loads(relay.events[1].content)["name"] == "Robot 2"


async def test_faults_of_the_table_are_reported(
    rookery: Rookery, capsys: Capture, tmp_path: Path
) -> None:
    write_settings(tmp_path, "autor_id = 5\nauthor_name = 5")
    assert await rookery("remember", "a") == 1
    err = capsys.readouterr().err
    assert "unknown key autor_id; did you mean author_id?" in err
    assert "author_name: must be a string" in err


@pytest.mark.parametrize(
    ("options", "said", "attestation"),
    [
        ((), "vouched {} 1", None),
        (("--confidence", "0.9"), "vouched {} 0.9", None),
        (("--dispute",), "disputed {} 1", "dispute"),
        (("--partial", "--name", "N"), "partly vouched {} 1", "partial"),
    ],
)
async def test_a_vouch_prints_its_attestation(
    rookery: Rookery,
    relay: FakeRelay,
    capsys: Capture,
    options: tuple[str, ...],
    said: str,
    attestation: str | None,
) -> None:
    assert await rookery("vouch", A, *options) == 0
    assert capsys.readouterr() == (said.format(A[:12]) + "\n", "")
    assert json.loads(relay.events[0].content).get("attestation") == attestation
    assert await rookery("vouch", A, *options, "--json") == 0
    assert json.loads(capsys.readouterr().out)["attestation"] == (attestation or "confirm")


async def test_a_vouch_for_ones_own_memory_says_that_it_does_not_count(
    rookery: Rookery, relay: FakeRelay, capsys: Capture, tmp_path: Path
) -> None:
    await rookery("remember", "a")
    await relay.publish(told(rover, "b"))
    capsys.readouterr()
    assert await rookery("vouch", A) == 0
    said = "this does not count: the memory is your own, or of your household\n"
    assert capsys.readouterr() == (f"vouched {A[:12]} 1\n", said)
    assert await rookery("vouch", B) == 0
    assert capsys.readouterr().err == ""
    write_settings(tmp_path, f'households = [["{robot.npub}", "{rover.npub}"]]')
    assert await rookery("vouch", B) == 0
    assert capsys.readouterr().err == said


async def test_a_vouch_is_withdrawn_if_there_is_one(
    rookery: Rookery, relay: FakeRelay, capsys: Capture
) -> None:
    assert await rookery("withdraw", A) == 1
    assert capsys.readouterr() == ("", f"this key does not vouch for {A[:12]}\n")
    await relay.publish(vouched(rover, A))
    assert await rookery("withdraw", A, "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"hash": A, "withdrawn": False}
    await rookery("vouch", A)
    capsys.readouterr()
    assert await rookery("withdraw", A) == 0
    assert capsys.readouterr() == (f"withdrawn {A[:12]}\n", "")


async def test_supersede_prints_the_new_hash(
    rookery: Rookery, relay: FakeRelay, capsys: Capture
) -> None:
    await relay.publish(told(robot, "a"))
    assert await rookery("supersede", A[:8], "b", "--tag", "t", "--type", "semantic") == 0
    assert capsys.readouterr() == (f"{B}\n", "")
    document = json.loads(relay.events[1].content)
    assert (document["tags"], document["memory_type"]) == (["t"], "semantic")
    assert await rookery("supersede", B, "c", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"hash": C, "supersedes": B}
    assert await rookery("supersede", "0" * 64, "c") == 1
    assert capsys.readouterr().err == (
        "rookery: unknown memory 000000000000; `rookery anamnesis recall WORDS` finds what this key"
        " may read\n"
    )


async def test_a_refusal_names_the_key(rookery: Rookery, relay: FakeRelay, capsys: Capture) -> None:
    relay.on["EVENT"] = refusing("restricted: only agents may write memory")
    for command in (("remember", "a"), ("vouch", A)):
        assert await rookery(*command) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "restricted: only agents may write memory" in err
        assert robot.npub in err


@pytest.mark.parametrize(
    "args",
    [
        ("remember",),
        ("remember", "a", "--type", "rumour"),
        ("remember", "a", "--confidence", "1.5"),
        ("vouch", A, "--confidence", "-1"),
        ("supersede", A),
        ("recall", "a", "--limit", "0"),
        ("recall", "a", "--author", robot.nsec),
        ("recall", "a", "--as-of", "yesterday"),
        ("bench", "--seed", "x"),
        ("validate", "missing.json"),
    ],
)
async def test_usage_errors(rookery: Rookery, capsys: Capture, args: tuple[str, ...]) -> None:
    assert await rookery(*args) == 2
    err = capsys.readouterr().err
    assert "--help" in err
    assert robot.nsec not in err


# -- reading --------------------------------------------------------------------------------------


async def test_get_prints_the_document(rookery: Rookery, relay: FakeRelay, capsys: Capture) -> None:
    nasty = "a\x1b[2J\u009b31m"
    hashed = content_hash(nasty)
    for event in (
        told(robot, nasty, tags=("t",)),
        vouched(alice, hashed, confidence=0.9),
        superseded(robot, hashed, B, at=NOON + 5),
        rover.sign(78, [["d", f"anamnesis:memory:{hashed}"], ["x", A]], "{}", NOON),
    ):
        await relay.publish(event)
    assert await rookery("get", hashed[:9], "--json") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["content"], document["tags"]) == (nasty, ["t"])
    assert [each["id"] for each in document["vouchers"]] == [alice.pubkey]
    assert document["superseded_by"] == B
    assert err.startswith(f"skipped {relay.events[-1].id[:8]} ")
    assert await rookery("get", hashed) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u009b" not in out
    assert '"content_hash": ' in out
    assert await rookery("get", "0" * 8) == 1
    assert capsys.readouterr().err.startswith("rookery: unknown memory 00000000; ")
    assert await rookery("get", B) == 1
    assert capsys.readouterr().err.startswith(f"rookery: unknown memory {B[:12]}; ")
    assert await rookery("get", "abc") == 1
    assert "'abc' is not a hash" in capsys.readouterr().err


async def test_an_ambiguous_prefix_lists_the_hashes(
    rookery: Rookery, relay: FakeRelay, capsys: Capture
) -> None:
    # Found by trying: both hashes begin with the same eight characters.
    one, two = _alike()
    for text in (one, two):
        await relay.publish(told(robot, text))
    assert await rookery("trust", content_hash(one)[:8]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    for text in (one, two):
        assert f"  {content_hash(text)[:16]} {text}\n" in err


def _alike() -> tuple[str, str]:
    seen: dict[str, str] = {}
    number = 0
    while True:
        text = f"memory {number}"
        beginning = content_hash(text)[:8]
        if beginning in seen:
            return seen[beginning], text
        seen[beginning] = text
        number += 1


async def tell_a_story(relay: FakeRelay) -> None:
    """c rests on a and b, b on a and on what nobody has."""
    gone = content_hash("gone")
    for event in (
        told(robot, "a"),
        told(robot, "b", parents=(A, gone)),
        told(robot, "c", parents=(A, B)),
    ):
        await relay.publish(event)


async def test_trace_prints_the_ancestors(
    rookery: Rookery, relay: FakeRelay, capsys: Capture
) -> None:
    await tell_a_story(relay)
    gone = content_hash("gone")[:12]
    assert await rookery("trace", C) == 0
    assert capsys.readouterr() == (
        f"{C[:12]} c\n├─ {A[:12]} a\n└─ {B[:12]} b\n   ├─ {A[:12]} a\n   └─ {gone} missing\n",
        "",
    )
    assert await rookery("trace", C, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "hash": C,
        "order": [A, B, C],
        "depth": 2,
        "missing": [content_hash("gone")],
        "truncated": False,
    }
    assert await rookery("trace", C, "--dot") == 0
    out = capsys.readouterr().out
    assert out.startswith("digraph provenance {\n")
    assert f'"{C}" -> "{B}";' in out
    assert await rookery("trace", C, "--svg") == 0
    root = ET.fromstring(capsys.readouterr().out)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall("{*}rect")) == len(root.findall("{*}line")) == 4
    assert await rookery("trace", "0" * 64) == 1
    assert capsys.readouterr().out == "000000000000 missing\n"


async def test_trust_prints_its_components(
    rookery: Rookery, relay: FakeRelay, capsys: Capture, tmp_path: Path
) -> None:
    for event in (told(robot, "a", anchors=("u",)), vouched(alice, A), vouched(rover, A)):
        await relay.publish(event)
    write_settings(
        tmp_path,
        f'households = [["{robot.npub}", "{rover.npub}"]]\nreputation = {{ "{robot.npub}" = 0 }}',
    )
    assert await rookery("trust", A) == 0
    assert capsys.readouterr() == ("0.6 attested (confirm 1, disputes 0, anchors 1)\n", "")
    assert await rookery("trust", A, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "hash": A,
        "score": 0.6,
        "level": "attested",
        "confirm": 1,
        "disputes": 0,
        "anchors": 1,
        "weakest_source": None,
        "confirm_weight": 1.0,
        "dispute_weight": 0,
        "reputation": 0,
    }
    assert await rookery("trust", B) == 1


async def test_recall_says_what_was_left_out_for_its_trust(
    rookery: Rookery, relay: FakeRelay, capsys: Capture
) -> None:
    await relay.publish(told(robot, "the rain"))
    for least, said in (
        (
            ("--min-trust", "0.4"),
            "nothing found; 1 below --min-trust 0.4, the highest trust is 0.3",
        ),
        (("--min-confidence", "0.9"), "1 below --min-confidence 0.9"),
        (("--min-trust", "0.3", "--type", "insight"), "nothing found\n"),
    ):
        assert await rookery("recall", "rain", *least) == 0
        out, err = capsys.readouterr()
        assert (out, said in err) == ("", True), err


async def test_recall_ranks_and_reports_a_relay_without_search(
    rookery: Rookery, relay: FakeRelay, capsys: Capture
) -> None:
    far = "rain, in a long text that says many other things beside it"
    for event in (
        told(rover, far, at=NOON - 9_000_000),
        told(robot, "the rain\n\x1b[2J", at=NOON),
        told(robot, "the sun", at=NOON),
    ):
        await relay.publish(event)
    first = content_hash("the rain\n\x1b[2J")
    assert await rookery("recall", "rain") == 0
    out, err = capsys.readouterr()
    assert err == f"{relay.url} does not support search: all memories are fetched and scanned\n"
    assert out.index(first[:12]) < out.index(content_hash(far)[:12])
    assert "unverified" in out
    assert "\x1b" not in out
    assert "sun" not in out
    assert await rookery("recall", "rain", "--json", "--author", robot.npub) == 0
    (hit,) = json.loads(capsys.readouterr().out)
    assert (hit["rank"], hit["hash"], hit["level"]) == (1, first, "unverified")
    assert (hit["id"], hit["author"]) == (relay.events[1].id, robot.pubkey)
    assert hit["why"].startswith("text 1.00, trust 0.30 (unverified), recency ")
    assert hit["entry"]["content_hash"] == first
    assert await rookery("recall", "rain", "--format", "context", "--limit", "1") == 0
    assert capsys.readouterr().out == (
        f'<memory source="anamnesis {first[:12]} unverified" author="{robot.npub}">\n'
        f"{DATA}\nthe rain\n[2J\n</memory>\n"
    )
    past = ("--as-of", "2026-01-01T00:00:00Z", "--include-superseded", "--topic", "t")
    assert await rookery("recall", "rain", *past) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("nothing found\n")


# -- files ----------------------------------------------------------------------------------------


async def test_import_and_export_count(
    rookery: Rookery, relay: FakeRelay, capsys: Capture, tmp_path: Path
) -> None:
    said = {"id": "v", "timestamp": "2026-02-02T16:00:00Z"}
    (tmp_path / "in.jsonl").write_text(
        json.dumps(DOCUMENT | {"vouchers": [said]}) + "\nnot \x1b JSON\n"
    )
    for counts in ("stored 1, duplicates 0", "stored 0, duplicates 1"):
        assert await rookery("import", "in.jsonl") == 1
        out, err = capsys.readouterr()
        assert out == f"{counts}, refused 1\n"
        assert err.splitlines() == [
            "line 2: is not a JSON object",
            "1 entries: unsigned vouchers and successors are kept as claimed, and never count",
        ]
    assert await rookery("export", "out.jsonl") == 0
    assert capsys.readouterr() == ("exported 1\n", "")
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(line) == DOCUMENT | {"parent_refs": [], "vouchers": [said]}
    assert await rookery("import", "out.jsonl", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"stored": 0, "duplicates": 1, "refused": 0}
    assert await rookery("export", "none.jsonl", "--group", "den", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"exported": 0}
    assert await rookery("import", "missing.jsonl") == 1
    assert "missing.jsonl" in capsys.readouterr().err


# -- without a relay ------------------------------------------------------------------------------


@pytest.mark.proves("X-20")
async def test_validate_prints_errors_and_warnings(
    rookery: Rookery,
    relay: FakeRelay,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, bad = json.dumps(DOCUMENT, indent=1), {"content": "a", "content_hash": B, "no\x1b": 1}
    (tmp_path / "good.json").write_text(good)
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    assert await rookery("validate", "good.json") == 0
    assert capsys.readouterr() == ("valid\n", "")
    errors = [
        "unknown field no�",
        "content.author must be an object",
        "content.timestamp must be an ISO 8601 date-time with zone",
        "content_hash does not match content",
    ]
    warnings = [f"{name} is missing" for name in ("memory_type", "tags", "confidence")]
    assert await rookery("validate", "bad.json") == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == ["invalid", *errors]
    assert err.splitlines() == [f"warning: {warning}" for warning in warnings]
    assert await rookery("validate", "bad.json", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["valid"], len(found["errors"]), found["warnings"]) == (False, 4, warnings)

    for text, code, said in (
        (good, 0, "valid\n"),
        ("", 1, "invalid\ncontent is not a JSON object\n"),
        ("[1]", 1, "invalid\ncontent is not a JSON object\n"),
        ("\n".join([json.dumps(DOCUMENT)] * 2), 0, "valid\n"),
        (json.dumps(DOCUMENT) + "\n\nx", 1, "invalid\nline 3: content is not a JSON object\n"),
    ):
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr("sys.stdin", stdin)
        assert await rookery("validate", "-") == code
        assert capsys.readouterr().out == said
    assert relay.visits == 0


class Endless(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        buffer[:] = b"x" * len(buffer)
        return len(buffer)


async def test_validate_reads_no_more_than_it_needs(
    rookery: Rookery,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It took all memory."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert await rookery("validate", "-") == 1
    assert capsys.readouterr().err == "rookery: over 16 MiB: validate it in parts\n"
    monkeypatch.setattr("relay.cli.anamnesis_offline._MAX_ERRORS", 3)
    lines = io.BytesIO(b'{"content": 1}\n' * 9)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(lines))
    assert await rookery("validate", "-") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "line 2 and those after it are not looked at"
    assert len(said) < 9


@pytest.mark.slow
@pytest.mark.proves("X-21")
async def test_the_benchmark_is_offline_and_deterministic(
    rookery: Rookery, relay: FakeRelay, capsys: Capture
) -> None:
    reports = []
    for seed in ("3", "3", "4"):
        assert await rookery("bench", "--seed", seed, "--json") == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1] != reports[2]
    assert reports[0]["systems"].keys() == {"anamnesis", "plain file", "no memory"}
    silent = reports[0]["systems"]["no memory"]
    assert [each["k"] for each in silent["sessions"]] == [1, 5, 10, 50]
    assert silent["sessions"][0]["calibration"] is None
    assert await rookery("bench") == 0
    out = capsys.readouterr().out
    assert out.startswith("seed 1: 20 facts planted, 5 never planted\n")
    assert "plain file" in out
    assert relay.visits == 0
