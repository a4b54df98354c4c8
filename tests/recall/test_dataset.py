"""How the file of a data set is read, and what is refused."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.recall import beam, synthetic
from tests.recall.dataset import LOCOMO, DatasetFault, Turn, conversations_in, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def sample() -> dict[str, Any]:
    """As LoCoMo has them: times of sessions that are not there, fields that nobody asks for."""
    return {
        "sample_id": "conv-1",
        "event_summary": {},
        "conversation": {
            "speaker_a": "Ada",
            "speaker_b": "Bo",
            "session_2_date_time": "12:05 am on 1 June, 2023",
            "session_2": [
                {
                    "speaker": "Bo",
                    "dia_id": "D2:1",
                    "text": "Look",
                    "img_url": ["x"],
                    "blip_caption": "a photo of a dog",
                }
            ],
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ada", "dia_id": "D1:1", "text": "Hi"},
                {"speaker": "Bo", "dia_id": "D1:2", "text": "Hello"},
            ],
            "session_3_date_time": "1:56 pm on 8 June, 2023",
        },
        "qa": [{"question": "Who?", "answer": 7, "evidence": ["D1:2"], "category": 4}],
    }


def test_a_conversation_has_its_sessions_in_order_with_their_times() -> None:
    (talk,) = conversations_in([sample()])
    assert talk.name == "conv-1"
    assert [session.number for session in talk.sessions] == [1, 2]
    assert talk.sessions[0].turns == (
        Turn("Ada", "Hi", 1_683_554_160),
        Turn("Bo", "Hello", 1_683_554_190),
    )
    assert talk.ends_at == 1_685_577_900


def test_what_a_shared_photo_shows_is_part_of_what_was_said() -> None:
    (talk,) = conversations_in([sample()])
    assert talk.sessions[1].turns[0].text == "Look [photo: a photo of a dog]"


@pytest.mark.parametrize(
    ("evidence", "sessions"),
    [
        (["D1:3"], {1}),
        (["D1:3", "D2:1", "D1:4"], {1, 2}),
        (["D1:6; D2:17"], {1, 2}),
        (["D1:1 D2:4 D2:6"], {1, 2}),
        (["D:2:26"], {2}),
        (["D2:05"], {2}),
        (["D"], set()),
        (["D3:1"], set()),
        ([], set()),
    ],
)
def test_evidence_names_sessions_in_all_the_ways_it_is_written(
    evidence: list[str], sessions: set[int]
) -> None:
    given = sample()
    given["qa"][0]["evidence"] = evidence
    (talk,) = conversations_in([given])
    assert talk.questions[0].evidence == sessions


def drop_time(given: dict[str, Any]) -> None:
    del given["conversation"]["session_2_date_time"]


def spoil_time(given: dict[str, Any]) -> None:
    given["conversation"]["session_1_date_time"] = "yesterday"


def drop_sessions(given: dict[str, Any]) -> None:
    given["conversation"] = {"session_1_date_time": "1:56 pm on 8 May, 2023"}


def drop_text(given: dict[str, Any]) -> None:
    del given["conversation"]["session_1"][0]["text"]


def spoil_evidence(given: dict[str, Any]) -> None:
    given["qa"][0]["evidence"] = [1]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (drop_time, "conv-1: there is no 'session_2_date_time'"),
        (spoil_time, "conv-1: time data 'yesterday' does not match"),
        (drop_sessions, "conv-1: there is no session"),
        (drop_text, "conv-1: there is no 'text'"),
        (spoil_evidence, "conv-1: expected string"),
        (dict.clear, "conversation 1: there is no 'sample_id'"),
    ],
)
def test_a_sample_of_another_form_is_refused_by_its_name(
    spoil: Callable[[dict[str, Any]], None], why: str
) -> None:
    given = sample()
    spoil(given)
    with pytest.raises(DatasetFault) as fault:
        conversations_in([given])
    assert str(fault.value).startswith(why)


@pytest.mark.parametrize("given", [[], {}, None, "text"])
def test_what_is_no_list_of_samples_is_refused(given: object) -> None:
    with pytest.raises(DatasetFault, match="not a list of conversations"):
        conversations_in(given)


def test_a_file_of_another_checksum_is_refused_and_its_own_is_told(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps([sample()]))
    own = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(DatasetFault) as fault:
        read(path)
    assert LOCOMO in str(fault.value)
    assert str(fault.value).endswith(f"--sha256 {own}")
    (talk,) = read(path, own.upper())
    assert talk.name == "conv-1"
    path.write_text(json.dumps([sample()]) + " ")
    with pytest.raises(DatasetFault, match="not the one that was given"):
        read(path, own)


def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetFault, match="No such file"):
        read(tmp_path / "nothing.json")
    path = tmp_path / "text.json"
    path.write_bytes(b"\xff{")
    with pytest.raises(DatasetFault, match="not JSON"):
        read(path, hashlib.sha256(b"\xff{").hexdigest())


def test_the_synthetic_set_is_the_same_in_each_run_and_another_with_another_seed() -> None:
    first = json.dumps(synthetic.samples())
    assert hashlib.sha256(first.encode()).hexdigest() == SYNTHETIC
    assert json.dumps(synthetic.samples(seed=2)) != first


SYNTHETIC = "b2a7acfaceb99a5e2cb2e13511dbf55d2434bacd13c346dc73f06805466a50ad"
"""Its numbers in docs/benchmarks.md are of this set."""


def test_the_synthetic_set_has_what_it_says() -> None:
    talks = conversations_in(synthetic.samples())
    assert len(talks) == synthetic.CONVERSATIONS
    for talk in talks:
        assert [len(session.turns) for session in talk.sessions] == (
            [synthetic.TURNS] * synthetic.SESSIONS
        )
        assert all(question.evidence for question in talk.questions)
        assert {question.category for question in talk.questions} == {1, 2, 3, 4, 5}


def test_no_synthetic_question_has_its_answer_in_it() -> None:
    news = {new for theme in synthetic.THEMES for new in theme.new}
    for given in synthetic.samples():
        for asked in given["qa"]:
            assert not any(new in asked["question"] for new in news), asked["question"]


def beam_folder(folder: Path, **asked: Any) -> Path:
    """As chats/100K has them, with one conversation."""
    chat = [
        {
            "batch_number": 1,
            "turns": [
                [
                    {
                        "role": "user",
                        "id": 0,
                        "time_anchor": "March-15-2024",
                        "content": "Plan it? ->-> 1,1",
                    },
                    {"role": "assistant", "id": 1, "content": "Certainly."},
                ],
                [{"role": "user", "id": 2, "content": "I am Craig. ->-> 1,N/A"}],
            ],
        },
        {"batch_number": 2, "turns": [[{"role": "user", "id": 3, "content": "On."}]]},
    ]
    questions = folder / "1" / "probing_questions"
    questions.mkdir(parents=True)
    (folder / "1" / "chat.json").write_text(json.dumps(chat))
    (questions / "probing_questions.json").write_text(json.dumps(asked))
    return folder


def test_a_group_of_messages_of_beam_is_a_session(tmp_path: Path) -> None:
    (talk,) = beam.read(beam_folder(tmp_path))
    assert [session.number for session in talk.sessions] == [1, 2, 3]
    assert talk.sessions[0].turns == (
        Turn("user", "Plan it?", 1_710_460_800),
        Turn("assistant", "Certainly.", 1_710_460_830),
    )
    assert talk.sessions[1].turns[0].text == "I am Craig."


@pytest.mark.parametrize(
    ("sources", "sessions"),
    [([1, 2], {1, 2}), ({"first": [3], "second": [[0]]}, {1, 3}), ([9], set()), (None, set())],
)
def test_messages_that_answer_a_question_of_beam_name_their_sessions(
    tmp_path: Path, sources: Any, sessions: set[int]
) -> None:
    asked = {"question": "When?", "source_chat_ids": sources}
    (talk,) = beam.read(beam_folder(tmp_path, temporal_reasoning=[asked]))
    assert [question.evidence for question in talk.questions] == [sessions]


def test_a_folder_that_is_not_of_beam_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetFault, match="no folder of it has probing_questions"):
        beam.read(tmp_path)
    beam_folder(tmp_path, juggling=[{"question": "How many?"}])
    with pytest.raises(DatasetFault, match="there is no 'juggling'"):
        beam.read(tmp_path)
