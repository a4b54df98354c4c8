"""relay/memory/snowclaw/config.py: two spellings, authors, precedence."""

from __future__ import annotations

from itertools import permutations

import orjson
import pytest

from relay.errors import Invalid
from relay.memory.check_options import CheckOptions
from relay.memory.snowclaw.checks import check
from relay.memory.snowclaw.config import (
    ConfigRecord,
    DynamicConfig,
    EffectiveConfig,
    GroupConfig,
    RespondMode,
    Source,
    config_draft,
    config_in,
    config_of,
)
from relay.memory.snowclaw.keys import Everywhere, OfGroup, OfUser, keys_of
from relay.memory.unreadable import UnreadableRecord
from tests.cast import alice, bob, owner, robot
from tests.unit.memory.snowclaw.making import AT, config, record, signed, text_record

OWNED = DynamicConfig(frozenset({owner.pubkey}))
TEA = OfGroup("tea")


def read(*arguments: object, **more: object) -> ConfigRecord:
    found = config_in(config(*arguments, **more))  # type: ignore[arg-type]
    assert isinstance(found, ConfigRecord), found
    return found


@pytest.mark.proves("S-15")
def test_a_tag_goes_before_the_content_field_by_field() -> None:
    fields = {"respond_mode": "owner", "context_history": 7}
    both = read("global", fields, ["respond_mode", "none"])
    assert both.config == GroupConfig(RespondMode.NONE, 7)
    assert read("global", fields).config == GroupConfig(RespondMode.OWNER, 7)
    assert read("global", None, ["context_history", "9"]).config == GroupConfig(None, 9)
    assert read("global").config == GroupConfig()


@pytest.mark.proves("S-15", "S-16")
def test_both_places_are_written_and_other_fields_stay() -> None:
    stored = read("group:tea", {"note": "kept", "respond_mode": "ALL", "x": [1]})
    draft = config_draft(TEA, GroupConfig(context_history=30), stored, AT + 1)
    assert draft.tags == [
        ["d", "snowclaw:config:group:tea"],
        ["h", "tea"],
        ["respond_mode", "all"],
        ["context_history", "30"],
    ]
    assert draft.content == '{"respond_mode":"all","context_history":30,"note":"kept","x":[1]}'
    event = signed(draft, owner)
    assert check(event, CheckOptions()) is None
    again = config_in(event)
    assert isinstance(again, ConfigRecord)
    assert again.config == GroupConfig(RespondMode.ALL, 30)
    assert again.extra == {"note": "kept", "x": [1]}


def test_what_was_never_set_is_not_written() -> None:
    draft = config_draft(Everywhere(), GroupConfig(), None, AT)
    assert (draft.tags, draft.content) == ([["d", "snowclaw:config:global"]], "{}")


def test_values_of_a_file_are_refused_in_the_relays_words() -> None:
    assert config_of({"respond_mode": "listen", "context_history": "5"}) == GroupConfig(
        RespondMode.NONE, 5
    )
    with pytest.raises(Invalid, match="respond_mode must be all, mention, owner or none"):
        config_of({"respond_mode": "often"})
    with pytest.raises(Invalid, match="context_history must be an integer from 0 to 1000"):
        config_of({"context_history": 1001})


@pytest.mark.parametrize(
    ("d", "content", "why"),
    [
        ("snowclaw:config:global", "[]", "content is not a JSON object"),
        (
            "snowclaw:config:global",
            '{"respond_mode":"often"}',
            "respond_mode must be all, mention, owner or none",
        ),
        (
            "snowclaw:config:npub:x",
            "",
            "d must end with an npub or 16, 32 or 64 lowercase hex characters",
        ),
    ],
)
def test_what_another_relay_let_in_is_reported_and_changes_nothing(
    d: str, content: str, why: str
) -> None:
    event = text_record(d, content, by=owner)
    assert config_in(event) == UnreadableRecord(event, why)
    assert OWNED.after(event) is OWNED


@pytest.mark.proves("S-19")
def test_nobody_but_an_owner_is_heard() -> None:
    for author in (robot, alice):
        event = config("global", {"respond_mode": "all"}, by=author)
        assert OWNED.after(event) is OWNED
    assert OWNED.after(record("snowclaw:core:x", by=owner)) is OWNED
    other_kind = owner.sign(78, [["d", "snowclaw:config:global"], ["respond_mode", "all"]], "", AT)
    assert OWNED.after(other_kind) is OWNED


@pytest.mark.proves("S-17")
def test_each_value_comes_from_the_nearest_scope_that_has_it() -> None:
    known = OWNED.after(config("global", {"respond_mode": "none", "context_history": 9}))
    known = known.after(config("group:tea", {"context_history": 30}))
    known = known.after(config(f"npub:{alice.pubkey[:32]}", {"respond_mode": "all"}))
    assert known.effective("tea", alice.pubkey) == EffectiveConfig(
        RespondMode.ALL, 30, Source.NPUB, Source.GROUP
    )
    assert known.effective("tea", bob.pubkey).respond_mode_from is Source.GLOBAL
    assert known.effective("den", alice.pubkey).context_history_from is Source.GLOBAL
    assert known.effective().context_history == 9


@pytest.mark.proves("S-17")
def test_a_file_and_the_defaults_stand_behind_all_scopes() -> None:
    bare = EffectiveConfig(RespondMode.MENTION, 20, Source.DEFAULT, Source.DEFAULT)
    assert isinstance(bare, GroupConfig)
    assert OWNED.effective("tea", alice.pubkey) == bare
    from_file = DynamicConfig(OWNED.owners, GroupConfig(RespondMode.OWNER, 0))
    assert from_file.effective("tea") == EffectiveConfig(
        RespondMode.OWNER, 0, Source.FILE, Source.FILE
    )


@pytest.mark.proves("S-01", "S-17")
@pytest.mark.parametrize("form", range(4))
def test_a_user_is_found_under_every_form_of_the_key(form: int) -> None:
    key = keys_of(alice.pubkey)[form]
    known = OWNED.after(config(f"npub:{key}", {"context_history": 3}))
    assert known.effective("tea", alice.pubkey).context_history == 3
    assert known.effective("tea", bob.pubkey).context_history == 20
    assert known.at(OfUser(key)) == known.of_user(alice.pubkey)


def test_of_two_forms_the_newer_record_holds() -> None:
    wide, half = (
        config(f"npub:{key}", {"context_history": count}, at=AT + count)
        for key, count in ((alice.pubkey, 1), (alice.pubkey[:32], 2))
    )
    for events in ((wide, half), (half, wide)):
        known = OWNED.after(events[0]).after(events[1])
        assert known.effective(npub=alice.pubkey).context_history == 2


@pytest.mark.proves("S-18")
def test_the_newest_version_holds_in_whatever_order_they_come() -> None:
    versions = [config("global", {"context_history": n}, at=AT + n // 2) for n in range(4)]
    last = min(versions[2:], key=lambda event: event.id)
    for events in permutations(versions):
        known = OWNED
        for event in events:
            known = known.after(event)
        found = known.at(Everywhere())
        assert found is not None
        assert found.event == last
        assert known.effective().context_history == orjson.loads(last.content)["context_history"]
