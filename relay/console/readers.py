"""Who may read an event, in the who-words of the rules about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.facts import Who

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.access.read_rules import ReadRule
    from relay.console.ask import Ask
    from relay.nostr.event import Event

_ANYBODY: Final = "anybody"
_SOME_GROUP: Final = ""
_WORDS: Final = {
    Who.ANYONE: _ANYBODY,
    Who.NOBODY: "nobody",
    Who.OWNER: "owners",
    Who.AGENT: "agents",
    Who.MEMBER: "members of groups",
    Who.KNOWN: "known people",
    Who.INSIDER: "members of its group",
    Who.ADMIN: "admins of its group",
    Who.GROUP: "who may read its group",
    Who.VISIBLE: "who may see its group",
    Who.AUTHOR: "its author",
    Who.RECIPIENT: "who is named in it",
    Who.TRUSTED: "trusted addresses",
    Who.TARGET: "who may read what it is about",
}


def readers_text(ask: Ask, event: Event) -> str:
    """Such as `owners, agents; and who may read its group`: each part must hold.

    An event without `h` may have the group of an event that it names: then without one and with
    one.
    """
    state = ask.services.state
    group_id = state.policy.row_group(event)
    text = _text(state.rules_about(event, group_id))
    is_derived = group_id is None and event.kind in state.policy.groups.derived
    if not is_derived or not any(event.tag_values(name) for name in "eEaA"):
        return text
    return f"{text}; about an event of a group: {_text(state.rules_about(event, _SOME_GROUP))}"


def _text(rules: Iterable[ReadRule]) -> str:
    listed = [_words(rule) for rule in rules]
    sets = [frozenset(words) for words in listed]
    # A rule that allows everybody whom another rule allows is left out.
    parts = [
        ", ".join(words)
        for words, own in zip(listed, sets, strict=True)
        if not any(other < own for other in sets)
    ]
    return "; and ".join(dict.fromkeys(parts)) or _ANYBODY


def _words(rule: ReadRule) -> list[str]:
    words = [text for word, text in _WORDS.items() if word in rule.readers]
    return [*words, *(f"keys in its tag {name}" for name in rule.tag_readers)]
