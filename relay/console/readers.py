"""Who may read an event, in the who-words of the rules about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.facts import Who

if TYPE_CHECKING:
    from relay.access.read_rules import ReadRule
    from relay.console.ask import Ask
    from relay.nostr.event import Event

_ANYBODY: Final = "anybody"
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
    """Such as `owners, agents; and who may read its group`: each part must hold."""
    listed = [_words(rule) for rule in ask.services.state.rules_about(event)]
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
