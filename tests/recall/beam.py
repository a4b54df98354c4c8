"""BEAM (Tavakoli et al., 2025): conversations of one person with an assistant, from a folder.

`chats/100K` of github.com/mohammadtavakoli78/BEAM: in each of its folders `chat.json` (batches of
groups of messages, each with `role`, `id`, `content`; `chat_trunecated.json` is preferred, as its
authors do), and `probing_questions/probing_questions.json` (by ability, with `source_chat_ids`: the
messages that answer a question). A group of messages is a session here.

The data is under CC BY-SA 4.0 and no part of this project: who has it says where it is.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tests.recall.dataset import (
    BEAM_ABILITIES,
    TURN_S,
    Conversation,
    DatasetFault,
    Question,
    Session,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FIRST: Final = datetime(2024, 1, 1, tzinfo=UTC)
_ANCHOR: Final = "%B-%d-%Y"
_INDEX: Final = re.compile(r"\s*->->\s*\d+,\s*(?:\d+|N/A)\s*$")
"""At the end of questions: the place in the plan from which the conversation was made."""


def read(folder: Path) -> tuple[Conversation, ...]:
    """Raises DatasetFault."""
    try:
        places = sorted(
            (each for each in folder.iterdir() if (each / "probing_questions").is_dir()),
            key=lambda each: (len(each.name), each.name),
        )
    except OSError as error:
        raise DatasetFault(f"{folder}: {error.strerror}") from None
    if not places:
        raise DatasetFault(f"{folder}: no folder of it has probing_questions, as chats/100K does")
    return tuple(_conversation(place) for place in places)


def _conversation(folder: Path) -> Conversation:
    cut = folder / "chat_trunecated.json"
    chat = cut if cut.exists() else folder / "chat.json"
    asked = folder / "probing_questions" / "probing_questions.json"
    try:
        batches, questions = (json.loads(file.read_bytes()) for file in (chat, asked))
        places: dict[int, set[int]] = {}
        sessions = tuple(_sessions(batches, places))
        found = tuple(_questions(questions, places))
    except OSError as error:
        raise DatasetFault(f"{error.filename}: {error.strerror}") from None
    except KeyError as error:
        raise DatasetFault(f"{folder}: there is no {error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise DatasetFault(f"{folder}: {error}") from None
    if not sessions:
        raise DatasetFault(f"{folder}: there is no message")
    return Conversation(folder.name, sessions, found)


def _sessions(batches: Any, places: dict[int, set[int]]) -> Iterator[Session]:
    """`places` is filled: the sessions that have a message of this id."""
    number, at = 0, int(_FIRST.timestamp())
    for batch in batches:
        for group in batch["turns"]:
            number += 1
            turns = []
            for message in group:
                if anchor := message.get("time_anchor"):
                    began = datetime.strptime(anchor, _ANCHOR).replace(tzinfo=UTC)
                    at = max(at, int(began.timestamp()))
                places.setdefault(int(message["id"]), set()).add(number)
                text = _INDEX.sub("", message["content"])
                turns.append(Turn(str(message["role"]), text, at))
                at += TURN_S
            yield Session(number, tuple(turns))


def _questions(by_ability: Any, places: dict[int, set[int]]) -> Iterator[Question]:
    for ability, questions in by_ability.items():
        for asked in questions:
            sources = _numbers(asked.get("source_chat_ids"))
            evidence = {place for source in sources for place in places.get(source, ())}
            yield Question(asked["question"], BEAM_ABILITIES[ability], frozenset(evidence))


def _numbers(value: Any) -> Iterator[int]:
    """All in lists and objects, however nested."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
