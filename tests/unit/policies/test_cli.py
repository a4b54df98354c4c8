"""`rookery policy`: what an admin sees, and the exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from relay.cli import run
from tests.cast import alice, owner, robot, stranger
from tests.harness.folders import written
from tests.unit.policies.facts import event_by

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder whose people are the cast's."""
    (tmp_path / "data" / "policies").mkdir(parents=True)
    written(
        tmp_path / "data" / "policies",
        **{"00-actors": f'[actors]\nowners = ["{owner.npub}"]\nagents = ["{robot.npub}"]\n'},
    )
    return tmp_path / "data"


def saved(folder: Path, event: Event) -> str:
    path = folder / "event.json"
    path.write_bytes(event.raw)
    return str(path)


def test_a_right_folder_is_ok(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([str(data)], [str(data / "policies")], ["--data", str(data)]):
        assert run(["policy", "check", *arguments]) == 0
        out = capsys.readouterr()
        assert out.out.startswith("ok: ")
        assert " rules in 6 files" in out.out
        assert out.err == ""


def test_every_fault_is_a_line_on_stderr(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(data / "policies", a="[limits]\nmax_event_tag = 1\n[server]\n")
    assert run(["policy", "check", "--data", str(data)]) == 1
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.splitlines() == [
        f'{data}/policies/a.toml:2: unknown key "max_event_tag" in [limits]; did you mean '
        '"max_event_tags"?',
        f"{data}/policies/a.toml:3: [server] belongs in rookery.toml",
    ]


def test_check_prints_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "check", "--data", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    written(data / "policies", a="x = 1")
    assert run(["policy", "check", "--data", str(data), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert [(fault["file"], fault["line"]) for fault in told["faults"]] == [
        (f"{data}/policies/a.toml", 1)
    ]


def test_a_folder_that_is_not_there_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "check", str(tmp_path / "nowhere")]) == 1
    assert "is no data folder: name" in capsys.readouterr().err


def test_check_says_what_an_admin_replaced(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(data / "policies", a='[[rule]]\nname = "transcripts"\nenabled = false')
    assert run(["policy", "check", "--data", str(data)]) == 0
    said = capsys.readouterr().out
    assert f'{data}/policies/a.toml:1: switches off the packaged rule "transcripts"' in said


def test_show_names_people_and_rules(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "show", "--data", str(data)]) == 0
    shown = capsys.readouterr().out
    for word in (
        owner.npub,
        "known people write",
        "rows of a group",
        "the latest version by ts",
        "30-people.toml",
        "an agent with its owner's attestation is known while its owner is",
        "a memory of anamnesis has at most 10000 characters",
        "the form of anamnesis, an author who owns the target, or an owner",
    ):
        assert word in shown
    assert run(["policy", "show", "--data", str(data), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["owners"] == [owner.pubkey]
    assert told["limits"]["created_at_upper"] == 900
    assert told["members"]["attestations"] == "relay"
    assert told["anamnesis"] == {"max_chars": 10_000, "max_bytes": 0, "vouchers": "agents"}


@pytest.mark.proves("G-29")
def test_explain_gives_the_relays_answer_and_the_rule(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = [["d", "snowclaw:config:global"]]
    path = saved(data, event_by(robot, 30078, config, '{"respond_mode":"all"}'))
    assert run(["policy", "explain", path, "--data", str(data)]) == 1
    said = capsys.readouterr().out
    assert "OK false restricted: only an owner may write config\n" in said
    assert "decided by: config is the owner's (packaged/20-memory.toml:" in said

    path = saved(data, event_by(owner, 30078, config, '{"respond_mode":"all"}'))
    assert run(["policy", "explain", path, "--data", str(data), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["message"], told["rule"]) == (True, "", None)


def test_explain_takes_words_for_what_it_cannot_look_up(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(data, event_by(alice, 1))
    assert run(["policy", "explain", path, "--data", str(data)]) == 1
    assert "OK false restricted: only people known here" in capsys.readouterr().out
    assert run(["policy", "explain", path, "--data", str(data), "--author-is", "member"]) == 0
    assert 'OK true ""' in capsys.readouterr().out


def test_explain_takes_the_author_for_logged_in_unless_told(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(data, event_by(owner, 1, [["-"]]))
    assert run(["policy", "explain", path, "--data", str(data)]) == 0
    assert 'OK true ""' in capsys.readouterr().out
    assert run(["policy", "explain", path, "--data", str(data), "--as", "nobody"]) == 1
    assert "OK false auth-required: " in capsys.readouterr().out
    assert run(["policy", "explain", path, "--data", str(data), "--as", alice.npub]) == 1
    assert "OK false restricted: " in capsys.readouterr().out


def test_explain_tells_of_forms_and_signatures_too(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = json.loads(event_by(owner, 1).raw)
    path = data / "event.json"
    path.write_text(json.dumps(event | {"sig": "0" * 128}))
    assert run(["policy", "explain", str(path), "--data", str(data)]) == 1
    assert "OK false invalid: sig: invalid signature" in capsys.readouterr().out
    path.write_text(json.dumps(event | {"kind": "1"}))
    assert run(["policy", "explain", str(path), "--data", str(data)]) == 1
    assert "OK false invalid: kind: " in capsys.readouterr().out
    path.write_text("{")
    assert run(["policy", "explain", str(path), "--data", str(data)]) == 1
    assert "is not JSON" in capsys.readouterr().err
    assert run(["policy", "explain", str(data / "nowhere.json"), "--data", str(data)]) == 2


def test_explain_says_who_may_read(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(data, event_by(robot, 30078, [["d", "snowclaw:core:x"]]))

    def answer(viewer: str) -> str:
        asked = ["policy", "explain", path, "--data", str(data), "--read", viewer]
        said = run(asked), capsys.readouterr().out
        assert said[0] == ("not readable" in said[1])
        return said[1]

    assert "readable: every rule that matches permits it" in answer(owner.npub)
    assert "readable: every rule" in answer(robot.pubkey)
    for viewer in (stranger.npub, "nobody"):
        assert "not readable, by app data needs a login (packaged/20-memory.toml" in answer(viewer)
    path = saved(data, event_by(alice, 1))
    assert "readable: no rule matches" in answer("nobody")
    path = saved(data, event_by(stranger, 24133, [["p", alice.pubkey]]))
    assert "readable: every rule" in answer("nobody")


def test_cases_pass_or_are_named(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = tmp_path / "without data"
    nowhere.mkdir()
    monkeypatch.chdir(nowhere)
    cases = tmp_path / "cases.toml"
    cases.write_text(
        '[[case]]\nsays = "a stranger writes"\nevent = { kind = 1 }\nwant = "accept"\n'
        '[[case]]\nsays = "an owner writes"\nevent = { kind = 1, by = "owner" }\nwant = "accept"\n'
    )
    assert run(["policy", "test", str(cases)]) == 1
    out = capsys.readouterr()
    assert out.err.splitlines() == [
        f"{cases}:1: a stranger writes",
        "    want accept",
        "    got  restricted: only people known here may write; join a group first  by known "
        "people write",
    ]
    assert out.out.startswith("2 cases, 1 passed, 1 failed, against the packaged policies (")
    assert run(["policy", "test", str(cases), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failed"][0]["line"] == 1
    written(data / "policies", b='[[rule]]\nname = "known people write"\nenabled = false')
    assert run(["policy", "test", str(cases), "--data", str(data)]) == 0
    said = capsys.readouterr().out
    assert said == f"2 cases, 2 passed, 0 failed, against {data}/policies\n"


def test_a_wrong_table_of_cases_is_told_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = tmp_path / "cases.toml"
    cases.write_text('[[case]]\nsays = "x"\nevnt = { kind = 1 }\nwant = "accept"\n')
    assert run(["policy", "test", str(cases)]) == 1
    assert f'{cases}:3: unknown key "evnt" in [[case]]; did you mean "event"?' in (
        capsys.readouterr().err
    )
