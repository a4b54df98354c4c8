"""Conversations with questions about them, as the file `locomo10.json` of LoCoMo has them.

A list of samples, each with `conversation` (`session_1`, `session_1_date_time`, …; turns with
`speaker`, `dia_id` "D1:3", `text` and perhaps `blip_caption`, what a shared photo shows) and `qa`
(`question`, `evidence`: the `dia_id`s of turns that answer it, `category`).

The file is under CC BY-NC 4.0 and no part of this project: who has it says where it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

LOCOMO: Final = "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4"
"""SHA-256 of `data/locomo10.json` as github.com/snap-research/locomo publishes it."""
BEAM_ABILITIES: Final = {
    name: number
    for number, name in enumerate(
        (
            "abstention",
            "contradiction_resolution",
            "event_ordering",
            "information_extraction",
            "instruction_following",
            "knowledge_update",
            "multi_session_reasoning",
            "preference_following",
            "summarization",
            "temporal_reasoning",
        ),
        11,
    )
}
CATEGORIES: Final = {
    1: "multi-hop",
    2: "temporal",
    3: "open-domain",
    4: "single-hop",
    5: "adversarial",
    **{number: name.replace("_", " ") for name, number in BEAM_ABILITIES.items()},
}
TIME_FORM: Final = "%I:%M %p on %d %B, %Y"
TURN_S: Final = 30
"""Seconds from a turn to the next; the file has times of sessions only."""

_SESSION: Final = re.compile(r"session_(\d+)")
_EVIDENCE: Final = re.compile(r"D:?(\d+)")
"""Sessions in a piece of evidence; some are written "D8:6; D9:17", one is "D:11:26"."""


class DatasetFault(Exception):
    """The file cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Turn:
    speaker: str
    text: str
    at: int
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Session:
    number: int
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    category: int
    evidence: frozenset[int]
    """Numbers of the sessions that answer it; none: it cannot be judged."""


@dataclass(frozen=True, slots=True)
class Conversation:
    name: str
    sessions: tuple[Session, ...]
    """By number, which is the order of time."""
    questions: tuple[Question, ...]

    @property
    def ends_at(self) -> int:
        return max(turn.at for session in self.sessions for turn in session.turns)


def read(path: Path, sha256: str = LOCOMO) -> tuple[Conversation, ...]:
    """The conversations of a file that has this checksum. Raises DatasetFault."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetFault(f"{path}: {error.strerror}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != sha256.lower():
        whose = "that of LoCoMo" if sha256 == LOCOMO else "the one that was given"
        raise DatasetFault(
            f"{path}: its SHA-256 is {found}, not {whose} ({sha256}); if this is the file that you"
            f" mean: --sha256 {found}"
        )
    try:
        samples = json.loads(data)
    except ValueError as error:
        raise DatasetFault(f"{path}: not JSON: {error}") from None
    return conversations_in(samples)


def conversations_in(samples: Any) -> tuple[Conversation, ...]:
    """Raises DatasetFault."""
    if not isinstance(samples, list) or not samples:
        raise DatasetFault("the data set is not a list of conversations")
    return tuple(_conversation(number, sample) for number, sample in enumerate(samples, 1))


def _conversation(number: int, sample: Any) -> Conversation:
    name = f"conversation {number}"
    try:
        name = str(sample["sample_id"])
        talk = sample["conversation"]
        numbers = sorted(int(found[1]) for key in talk if (found := _SESSION.fullmatch(key)))
        sessions = tuple(_session(each, talk) for each in numbers)
        known = {session.number for session in sessions if session.turns}
        questions = tuple(_question(each, known) for each in sample["qa"])
    except KeyError as error:
        raise DatasetFault(f"{name}: there is no {error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise DatasetFault(f"{name}: {error}") from None
    if not known:
        raise DatasetFault(f"{name}: there is no session")
    return Conversation(name, sessions, questions)


def _session(number: int, talk: dict[str, Any]) -> Session:
    began = datetime.strptime(talk[f"session_{number}_date_time"], TIME_FORM).replace(tzinfo=UTC)
    start = int(began.timestamp())
    turns = talk[f"session_{number}"]
    return Session(
        number,
        tuple(
            Turn(turn["speaker"], _said(turn), start + place * TURN_S)
            for place, turn in enumerate(turns)
        ),
    )


def _said(turn: dict[str, Any]) -> str:
    shown = turn.get("blip_caption")
    return str(turn["text"]) + (f" [photo: {shown}]" if shown else "")


def _question(asked: dict[str, Any], known: set[int]) -> Question:
    named = {int(found) for each in asked["evidence"] for found in _EVIDENCE.findall(each)}
    return Question(asked["question"], int(asked["category"]), frozenset(named & known))
