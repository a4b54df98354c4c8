"""A small data set of our own, in the form of LoCoMo: drawn from a seed, the same in each run.

Two people talk now and then for some months. In each session either of them mentions something
that is asked for later, between small talk that has the same places, days and people in it: a word
of the question alone does not find the answer. Of the questions some keep words of what was said,
some say it in words of their own, and some name the wrong one of the two.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from tests.recall.dataset import TIME_FORM

SEED: Final = 1
CONVERSATIONS: Final = 5
SESSIONS: Final = 20
TURNS: Final = 12
_FIRST: Final = datetime(2024, 1, 8, 18, 30, tzinfo=UTC)


class Theme(NamedTuple):
    """Something that happens to people. `{who}` who tells, `{a}` what is new, `{b}` where or with
    whom; questions never have `{a}`."""

    said: str
    asked: str
    """In words of what was said."""
    otherwise: str
    """In others."""
    several: str
    """What is asked of all that one of them told of this."""
    new: tuple[str, ...]


PLACES: Final = (
    "the harvest fair",
    "my sister's wedding",
    "the office party",
    "the lake",
    "the old library",
    "the night market",
    "the school reunion",
    "the mountain hut",
    "the harbour",
    "the clinic",
    "the train station",
    "the botanical garden",
    "the town hall",
    "grandma's house",
    "the theatre",
    "the bakery on the corner",
)
THEMES: Final = (
    Theme(
        "I baked {a} for {b} yesterday and not a crumb was left.",
        "What did {who} bake for {b}?",
        "Which dessert did {who} bring along to {b}?",
        "Which things has {who} baked?",
        ("a plum cake", "lemon tarts", "walnut bread", "a cherry pie", "ginger cookies"),
    ),
    Theme(
        "Near {b} I found a stray {a} and decided to keep it.",
        "Which stray did {who} find near {b}?",
        "Which pet did {who} take in around {b}?",
        "Which strays has {who} found?",
        ("greyhound", "tabby kitten", "parrot", "tortoise", "rabbit"),
    ),
    Theme(
        "They let me play the {a} on stage at {b}, my hands were shaking.",
        "What did {who} play on stage at {b}?",
        "Which instrument did {who} perform with in front of people at {b}?",
        "What has {who} played on stage?",
        ("accordion", "cello", "banjo", "clarinet", "hurdy-gurdy"),
    ),
    Theme(
        "I lost my {a} somewhere around {b} and searched for hours.",
        "What did {who} lose around {b}?",
        "Which belonging of {who} went missing by {b}?",
        "What has {who} lost?",
        ("silver ring", "passport", "reading glasses", "house keys", "red umbrella"),
    ),
    Theme(
        "I signed up for a {a} course that meets at {b}.",
        "Which course that meets at {b} did {who} sign up for?",
        "What is {who} learning these days at {b}?",
        "Which courses did {who} sign up for?",
        ("pottery", "sign language", "welding", "beekeeping", "watercolour"),
    ),
    Theme(
        "At {b} I ran into {a}, whom I had not seen for ten years.",
        "Whom did {who} run into at {b}?",
        "Which old acquaintance turned up while {who} was at {b}?",
        "Whom has {who} run into?",
        (
            "cousin Ferdinand",
            "my former teacher Ms Okafor",
            "Leila from the choir",
            "our old coach Bruno",
            "Tadeo from the shipyard",
        ),
    ),
    Theme(
        "I sprained my {a} while carrying boxes to {b}.",
        "What did {who} sprain while carrying boxes to {b}?",
        "How was {who} injured on the way to {b}?",
        "What has {who} sprained?",
        ("ankle", "wrist", "left knee", "shoulder", "thumb"),
    ),
    Theme(
        "I bought {a} from a man outside {b}, much too expensive of course.",
        "What did {who} buy outside {b}?",
        "What did {who} spend far too much money on close to {b}?",
        "What has {who} bought?",
        ("a brass telescope", "a typewriter", "a hammock", "a box of old maps", "a copper kettle"),
    ),
)
SMALL_TALK: Final = (
    "Anyway, how was your week?",
    "I walked past {b} today, it was so crowded.",
    "{other}, you always make me laugh.",
    "Did I tell you that they are repainting {b}?",
    "Work was long and I had no time to cook.",
    "Somebody at {b} asked me about you, {other}.",
    "I slept badly and dreamt of {b}, of all places.",
    "The weather has been strange lately.",
    "We should meet at {b} one of these days.",
    "Thanks for listening, {other}, it helps.",
    "I have been reading a lot in the evenings.",
    "My neighbour keeps talking about {b}.",
    "What did you find out about that course?",
    "I still have to buy a present, any ideas?",
    "They played some music near {b}, not my taste.",
    "I lost track of time again.",
)
PEOPLE: Final = (
    ("Ines", "Marlon"),
    ("Yuki", "Desmond"),
    ("Halima", "Piotr"),
    ("Noor", "Casper"),
    ("Svea", "Rashid"),
)


class Told(NamedTuple):
    """That somebody told of something."""

    who: str
    theme: Theme
    place: str
    turn: str
    """As `dia_id` has it."""


def samples(seed: int = SEED) -> list[dict[str, Any]]:
    """What the file of such a data set holds."""
    return [_sample(random.Random(f"{seed} {people}"), people) for people in PEOPLE[:CONVERSATIONS]]


def _sample(chance: random.Random, people: tuple[str, str]) -> dict[str, Any]:
    conversation: dict[str, Any] = {"speaker_a": people[0], "speaker_b": people[1]}
    # Nobody tells of one theme at one place twice, and both tell of every theme.
    stories = {
        who: chance.sample([(theme, place) for theme in THEMES for place in PLACES], SESSIONS)
        for who in people
    }
    told: list[Told] = []
    at = _FIRST
    for number in range(1, SESSIONS + 1):
        places = dict(zip(chance.sample(range(TURNS // 2), 2), people, strict=True))
        turns = []
        for turn in range(TURNS):
            who, other = people[turn % 2], people[1 - turn % 2]
            dia_id = f"D{number}:{turn + 1}"
            if places.get(turn // 2) == who:
                theme, place = stories[who][number - 1]
                text = theme.said.format(a=chance.choice(theme.new), b=place)
                told.append(Told(who, theme, place, dia_id))
            else:
                text = chance.choice(SMALL_TALK).format(b=chance.choice(PLACES), other=other)
            turns.append({"speaker": who, "dia_id": dia_id, "text": text})
        conversation[f"session_{number}_date_time"] = at.strftime(TIME_FORM)
        conversation[f"session_{number}"] = turns
        at += timedelta(days=chance.randint(2, 12), minutes=chance.randint(-90, 90))
    return {
        "sample_id": f"synthetic-{people[0].lower()}",
        "conversation": conversation,
        "qa": _questions(chance, people, told),
    }


def _questions(
    chance: random.Random, people: tuple[str, str], told: list[Told]
) -> list[dict[str, Any]]:
    """Of the categories of LoCoMo: 4, 3 and 2 of one thing told, 1 of several, 5 of the other."""
    asked = []
    for one in told:
        wrong = people[1 - people.index(one.who)]
        place = one.place.replace("my ", f"{one.who}'s ")
        category, form, who = chance.choice(
            [
                (4, one.theme.asked, one.who),
                (3, one.theme.otherwise, one.who),
                (2, "When was it? " + one.theme.otherwise, one.who),
                (5, one.theme.asked, wrong),
            ]
        )
        asked.append(_asked(form.format(who=who, b=place), category, [one.turn]))
    for who in people:
        for theme in THEMES:
            turns = [one.turn for one in told if one.who == who and one.theme == theme]
            if len(turns) > 1:
                asked.append(_asked(theme.several.format(who=who), 1, turns))
    return asked


def _asked(question: str, category: int, evidence: list[str]) -> dict[str, Any]:
    return {"question": question, "category": category, "evidence": evidence}
