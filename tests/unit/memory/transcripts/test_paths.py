"""Path tokens: there and back for every text. D-20…D-24; golden cases: extra.json."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.transcripts import paths
from relay.memory.transcripts.paths import Directory, PathTokens, with_field
from relay.nostr.event import object_of_any_size
from tests.golden import document

BASE = "/w/rook"
pieces = st.sampled_from(
    [
        "/w/rook",
        r"\/w\/rook",
        "$",
        "{",
        "}",
        "${",
        "CWD",
        "D",
        ":e",
        "${CWD}",
        "${CWD:e}",
        "${D}",
        "\\",
        "n",
        r"\n",
        ".",
        "-",
        "x",
        "é",
        " ",
        '"',
        "/",
        "/w",
        "rook",
        "C:\\\\w",
    ]
)
texts = st.lists(pieces, max_size=30).map("".join)


@pytest.mark.proves("D-20", "D-21")
@pytest.mark.parametrize("case", document("memory/conversation/expected/extra.json")["path_tokens"])
def test_golden_paths(case: dict[str, str]) -> None:
    tokens = PathTokens(case["cwd"])
    assert tokens.tokenised(case["raw"]) == case["token"]
    assert Directory(case["restored_to"]).restored(case["token"]) == case["restored"]
    assert Directory(case["cwd"]).restored(case["token"]) == case["raw"]


@pytest.mark.proves("D-21")
@given(texts, st.sampled_from([BASE, "", "C:\\w", "${", "/w/${D}", "${CWD}", "/", "{x", "C:/w"]))
def test_tokens_go_there_and_back_for_every_text(text: str, base: str) -> None:
    base = base.rstrip("/")
    there = PathTokens(base).tokenised(text)
    assert Directory(base).restored(there) == text


@pytest.mark.proves("D-20")
@pytest.mark.parametrize(
    ("raw", "tokenised"),
    [
        ("/w/rook", "${CWD}"),
        ("a=/w/rook/b:/w/rook", "a=${CWD}/b:${CWD}"),
        (r"\/w\/rook\/a", r"${CWD:e}\/a"),
        ("/w/rook2 /w/rook-x /w/rook_ /w/rooké", "/w/rook2 /w/rook-x /w/rook_ /w/rooké"),
        ("/w/rook.bak /w/rook. /w/rook.. /w/rook", "/w/rook.bak ${CWD}. ${CWD}.. ${CWD}"),
        ("/mnt/w/rook x/w/rook ./w/rook -/w/rook é/w/rook //w/rook",) * 2,
        (r"\n/w/rook \t/w/rook \\n/w/rook \\\n/w/rook", r"\n${CWD} \t${CWD} \\n/w/rook \\\n${CWD}"),
        ("n/w/rook", "n/w/rook"),
        (r"\u000a/w/rook", r"\u000a/w/rook"),
        ("$/w/rook ${x}", "$${CWD} ${D}{x}"),
    ],
)
def test_a_directory_is_a_token_only_where_it_is_itself(raw: str, tokenised: str) -> None:
    assert PathTokens(BASE).tokenised(raw) == tokenised


@pytest.mark.proves("D-22")
@pytest.mark.parametrize(
    ("base", "cwd", "said"),
    [
        (BASE, "/w/rook", "."),
        (BASE, "/w/rook/", "."),
        (BASE, "/w/rook/a/b", "a/b"),
        (BASE, "/w/rook2", "/w/rook2"),
        (BASE, "/elsewhere/", "/elsewhere/"),
        (BASE, "/w/rook\\a", "/w/rook\\a"),
        ("C:\\w", "C:\\w\\sub", "sub"),
        ("C:\\w", "C:\\w", "."),
        ("C:/w", "C:/w/sub", "sub"),
        ("rook", "rook/sub", "sub"),
        ("", "/w/rook", "/w/rook"),
    ],
)
def test_the_tag_says_where_below_the_directory(base: str, cwd: str, said: str) -> None:
    assert PathTokens(base).relative(cwd) == said


@pytest.mark.proves("D-21")
def test_another_directory_is_written_as_json_wants_it() -> None:
    token = r'{"cwd":"${CWD}","f":"${CWD:e}\/a"}'
    for path in ("/srv/new place", "C:\\Users\\x", '/q"uote', "/${CWD}", "/é"):
        assert orjson.loads(Directory(path).restored(token)) == {"cwd": path, "f": path + "/a"}
    assert Directory("/srv/").restored("${CWD}/a") == "/srv/a"


@pytest.mark.proves("D-24")
def test_a_field_is_set_and_all_else_stays() -> None:
    raw = (
        '{ "a" : {"gitBranch":"in"}, "t":"say \\"gitBranch\\":\\"x\\"",'
        ' "gitBranch" :"m\\"ain", "n":1.0 }'
    )
    assert with_field(raw, "gitBranch", "fix/é") == raw.replace('"m\\"ain"', '"fix/é"')
    twice = '{"gitBranch":"a","gitBranch":"b"}'
    assert with_field(twice, "gitBranch", "c") == '{"gitBranch":"a","gitBranch":"c"}'


@pytest.mark.proves("D-24")
@pytest.mark.parametrize(
    "raw",
    [
        '{"cwd":7,"x":"cwd","a":["cwd",":","old"],"cwd" : "old"}',
        '{"x":{"cwd":"old"},"y":[{"cwd":"old"}],"cwd":"old","z":"cwd"}',
        r'{"x":"\\","cwd":"old","y":"\"cwd\":"}',
        '{"cwd":"first","cwd":"old"}',
    ],
)
def test_the_field_is_found_among_what_looks_like_it(raw: str) -> None:
    at = raw.rindex('"old"')
    assert with_field(raw, "cwd", "new") == f'{raw[:at]}"new"{raw[at + 5 :]}'


def test_a_line_that_has_the_name_often_is_parsed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def counted(text: str) -> dict[str, object] | None:
        parsed.append(text)
        return object_of_any_size(text)

    monkeypatch.setattr(paths, "object_of_any_size", counted)
    nested = '{"x":[' + ",".join(['{"cwd":"in"}'] * 1000) + ']%s,"cwd":"out"}'
    for raw in (nested % "", nested % ',"\\u0063wd":"b"'):
        assert with_field(raw, "cwd", "b") == raw.replace('"out"', '"b"')
    assert len(parsed) == 4


@pytest.mark.parametrize(
    "raw",
    ["", "no json", "[]", '{"gitBranch":7}', '{"x":{"gitBranch":"in"}}', '{"gitBranch":null}'],
)
def test_without_that_field_nothing_is_set(raw: str) -> None:
    assert with_field(raw, "gitBranch", "b") == raw


def test_what_is_nested_too_deep_to_be_compared_stays() -> None:
    raw = '{"gitBranch":"a","x":' + "[" * 1000 + "]" * 1000 + "}"
    assert with_field(raw, "gitBranch", "b") in (raw, raw.replace('"a"', '"b"'))
