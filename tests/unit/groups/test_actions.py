"""relay/groups/actions.py: parsing 9000–9022."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from relay.errors import Invalid
from relay.groups import actions
from relay.groups.actions import (
    MAX_COPIED_TAGS,
    MAX_PINS,
    CreateGroup,
    CreateInvites,
    DeleteEvents,
    DeleteGroup,
    Description,
    EditMetadata,
    Flag,
    JoinRequest,
    LeaveRequest,
    PutUsers,
    Record,
    RemoveUsers,
    UpdatePins,
    action_of,
    group_of,
)
from relay.nostr import kinds
from tests.cast import admin, alice, bob
from tests.unit.groups.world import NOON, event

ID = "ab" * 32
OTHER_ID = "cd" * 32


def asked(kind: int, *tags: list[str], group: str = "tea") -> object:
    """The Action without its event's id."""
    found = action_of(event(admin, kind, ["h", group], *tags))
    assert found is not None
    return msgspec.structs.replace(found, id="")


def action(cls: type[Record], group: str = "tea", **fields: Any) -> Record:
    return cls(group=group, pubkey=admin.pubkey, created_at=NOON, **fields)


def refusal(kind: int, *tags: list[str], group: str = "tea") -> str:
    with pytest.raises(Invalid) as refused:
        asked(kind, *tags, group=group)
    return str(refused.value)


@pytest.mark.proves("N29-15")
@pytest.mark.parametrize("kind", [0, 1, 5, 9, 1111, 1984, 8999, 9023, 30078, 39000])
def test_other_kinds_have_no_action(kind: int) -> None:
    assert action_of(event(admin, kind, ["h", "tea"])) is None


@pytest.mark.proves("N29-54")
@pytest.mark.parametrize("kind", [9003, 9004, 9006, *range(9011, 9021)])
def test_reserved_kinds_are_unknown(kind: int) -> None:
    assert refusal(kind, ["p", alice.pubkey]) == "invalid: unknown moderation kind"


@pytest.mark.proves("N29-03", "N29-30", "N29-41", "N29-46", "N29-47", "N29-50", "N29-53")
def test_every_kind_becomes_its_action() -> None:
    put = asked(9000, ["p", alice.pubkey, "admin", "poet"], ["p", bob.pubkey])
    users = {alice.pubkey: ("admin", "poet"), bob.pubkey: ()}
    assert put == action(PutUsers, users=users)
    removal = asked(9001, ["p", alice.pubkey])
    assert removal == action(RemoveUsers, pubkeys=frozenset({alice.pubkey}))
    deletion = asked(9005, ["e", ID], ["e", OTHER_ID], ["e", ID])
    assert deletion == action(DeleteEvents, ids=(ID, OTHER_ID))
    assert asked(9007) == action(CreateGroup, description=Description())
    assert asked(9008) == action(DeleteGroup)
    assert asked(9010, ["e", ID]) == action(UpdatePins, pins=(("e", ID),))
    assert asked(9009, ["code", "open sesame"]) == action(CreateInvites, codes=("open sesame",))
    assert asked(9021) == action(JoinRequest, code=None)
    assert asked(9021, ["code", "sesame"]) == action(JoinRequest, code="sesame")
    assert asked(9022) == action(LeaveRequest)


@pytest.mark.proves("N29-48", "N29-49")
def test_an_edit_has_the_whole_metadata_in_the_order_of_39000() -> None:
    """First occurrence of a single value; flags count whatever follows."""
    edit = asked(
        9002,
        ["about", "leaves"],
        ["theme", "green", "dark"],
        ["private", "no"],
        ["name", "Tea"],
        ["name", "Coffee"],
        ["supported_kinds", "9", "11"],
        ["closed"],
        ["theme", "red"],
        ["t", "x"],
    )
    assert edit == action(
        EditMetadata,
        description=Description(
            metadata=(
                ("name", "Tea"),
                ("about", "leaves"),
                ("theme", "green", "dark"),
                ("theme", "red"),
                ("t", "x"),
            ),
            flags=frozenset({Flag.PRIVATE, Flag.CLOSED}),
            supported_kinds=frozenset({9, 11}),
        ),
        confirmed=frozenset(),
    )


@pytest.mark.proves("N29-49")
@pytest.mark.parametrize(
    "name",
    ["d", "previous", "-", "nonce", "public", "open", "visible", "unrestricted"],
)
def test_tags_that_are_not_metadata_are_not_copied(name: str) -> None:
    edit = asked(9002, [name, "1700000000"], [])
    assert isinstance(edit, EditMetadata)
    assert edit.description.metadata == ()
    assert edit.confirmed == {name} & {"public", "open", "visible"}


@pytest.mark.proves("N29-49")
def test_unknown_tags_are_copied_up_to_a_limit() -> None:
    edit = asked(9002, *(["x", str(n)] for n in range(MAX_COPIED_TAGS + 1)), ["name", "Tea"])
    assert isinstance(edit, EditMetadata)
    assert len(edit.description.metadata) == MAX_COPIED_TAGS + 1
    assert edit.description.metadata[-1] == ("x", str(MAX_COPIED_TAGS - 1))


@pytest.mark.proves("N29-13")
def test_an_empty_supported_kinds_is_not_an_absent_one() -> None:
    nothing, everything = asked(9002, ["supported_kinds"]), asked(9002)
    assert isinstance(nothing, EditMetadata)
    assert isinstance(everything, EditMetadata)
    assert nothing.description.supported_kinds == frozenset()
    assert everything.description.supported_kinds is None


@pytest.mark.proves("N29-131", "N29-132", "N29-138")
@pytest.mark.parametrize("kind", [9002, 9007])
def test_parent_and_children_have_fields_of_their_own(kind: int) -> None:
    """In the order of the event."""
    placed = asked(kind, ["child", "b"], ["parent", "up"], ["child", "a"], ["child", "b"])
    assert isinstance(placed, EditMetadata | CreateGroup)
    assert placed.description == Description(parent="up", children=("b", "a", "b"))


@pytest.mark.proves("N29-170")
def test_pins_are_a_list_without_repetition() -> None:
    """Further elements of a tag are kept."""
    pins = [["e", ID, "wss://relay"], ["a", f"30023:{alice.pubkey}:x"], ["e", OTHER_ID]]
    listed = asked(9010, *pins, ["t", "x"], ["e", ID])
    assert listed == action(UpdatePins, pins=tuple(map(tuple, pins)))
    assert asked(9010) == action(UpdatePins, pins=())
    most = [["e", f"{number:064x}"] for number in range(MAX_PINS)]
    assert isinstance(asked(9010, *most), UpdatePins)
    assert refusal(9010, *most, ["e", ID]) == "invalid: e, a: 65 pins, at most 64 allowed"


@pytest.mark.proves("N29-160")
@pytest.mark.parametrize("kind", [9002, 9007])
def test_live_audio_is_kept_as_a_flag(kind: int) -> None:
    asking = asked(kind, ["livekit"])
    assert isinstance(asking, EditMetadata | CreateGroup)
    assert asking.description.flags == {Flag.LIVEKIT}


@pytest.mark.proves("N29-37", "N29-46", "N29-47", "N29-50", "N29-113", "N29-133")
@pytest.mark.parametrize(
    ("kind", "tags", "text"),
    [
        (9000, [], "p: missing"),
        (9000, [["p"]], "p: must be 64 lowercase hex characters"),
        (9000, [["p", "AB" * 32]], "p: must be 64 lowercase hex characters"),
        (9000, [["p", "ab" * 32], ["p", "npub1"]], "p: must be 64 lowercase hex characters"),
        (9000, [["p", ID, ""]], "p: a role has 1 to 64 characters"),
        (9000, [["p", ID, "x" * 65]], "p: a role has 1 to 64 characters"),
        (9000, [["p", ID, *"123456789"]], "p: 9 roles, at most 8 allowed"),
        (9000, [["p", ID, "admin"], ["p", ID]], "p: one key with two sets of roles"),
        (9001, [], "p: missing"),
        (9001, [["p", "alice"]], "p: must be 64 lowercase hex characters"),
        (9002, [["supported_kinds", "9", "chat"]], "supported_kinds: must be kind numbers"),
        (9002, [["supported_kinds", "65536"]], "supported_kinds: must be kind numbers"),
        (9002, [["supported_kinds", "-1"]], "supported_kinds: must be kind numbers"),
        (9002, [["parent", "food"], ["parent", "drink"]], "parent: one tag only"),
        (9007, [["parent", "food"], ["parent", "food"]], "parent: one tag only"),
        (9002, [["parent"]], "parent: must name a group"),
        (9002, [["child", ""]], "child: must name a group"),
        (9005, [], "e: missing"),
        (9005, [["e", ID], ["e", "short"]], "e: must be 64 lowercase hex characters"),
        (9009, [], "code: missing"),
        (9009, [["code", "1234567"]], "code: must have at least 8 characters"),
        (9009, [["code"]], "code: must have at least 8 characters"),
        (9009, [["code", "x" * 257]], "code: must have at most 256 characters"),
        (9002, [["about", "x" * 65_536]], "tags: 65550 bytes, at most 65536 allowed"),
        (9002, [["about", "\x01" * 11_000]], "tags: 66014 bytes, at most 65536 allowed"),
        (9002, [["t", *["7"] * 17_000]], "tags: 68007 bytes, at most 65536 allowed"),
        (9007, [["child", "x" * 40_000]] * 2, "tags: 80027 bytes, at most 65536 allowed"),
        (9002, [["supported_kinds", *["9"] * 17_000]], "tags: 68021 bytes, at most"),
        (9010, [["e", ID, "x" * 65_536]], "e, a: 65613 bytes, at most 16384 allowed"),
        (9009, [["code", "12345678"], ["code", "12345678"]], "code: the same twice"),
        (9009, [["code", "12345678"], ["expiration", "soon"]], "bad expiration"),
    ],
)
def test_malformed_tags_are_refused_by_name(kind: int, tags: list[list[str]], text: str) -> None:
    assert refusal(kind, *tags).startswith(f"invalid: {text}")


@pytest.mark.proves("N29-55")
@pytest.mark.parametrize("kind", [9000, 9001, 9002, 9007, 9008, 9010, 9021])
def test_records_needed_for_a_replay_or_an_import_must_not_expire(kind: int) -> None:
    assert "expiration" in refusal(kind, ["p", ID], ["expiration", "1800000000"])


@pytest.mark.proves("N29-03")
@pytest.mark.parametrize("kind", [9000, 9001, 9002, 9005, 9008, 9009, 9010, 9021, 9022])
def test_a_record_without_h_is_invalid(kind: int) -> None:
    with pytest.raises(Invalid, match="h: missing"):
        action_of(event(admin, kind))


@pytest.mark.proves("N29-01", "N29-02")
@pytest.mark.parametrize(
    "group_id", ["x", "a" * 64, "Tee für zwei", "_", "…", "a.b", "🍵", 'a"b', "a,b"]
)
def test_almost_any_text_is_a_group_id(group_id: str) -> None:
    assert asked(9007, group=group_id) == action(CreateGroup, group_id, description=Description())


@pytest.mark.proves("N29-02")
@pytest.mark.parametrize(
    "group_id",
    ["a" * 65, "it's", "a/b", "a?b", "a#b", "a\nb", "a\x7fb", "\x00", " tea", "tea ", ".", ".."],
)
def test_a_new_group_id_is_safe_in_links_and_paths(group_id: str) -> None:
    assert refusal(9007, group=group_id).startswith("invalid: h: ")


# The group of a row


@pytest.mark.proves("N29-03", "N29-08")
def test_the_group_of_a_row_is_its_h_or_the_d_of_group_state() -> None:
    assert group_of(event(alice, 9, ["h", "tea", "wss://relay"])) == "tea"
    assert group_of(event(alice, 9)) is None
    for kind in kinds.GROUP_STATE:
        assert group_of(event(alice, kind, ["d", "tea"], ["h", "coffee"])) == "tea"


@pytest.mark.proves("N29-04", "Z-17")
@pytest.mark.parametrize("kind", [1, 9, 9000, 9021, 30078])
@pytest.mark.parametrize("second", ["tea", "coffee"])
def test_a_second_h_tag_is_invalid_even_if_equal(kind: int, second: str) -> None:
    with pytest.raises(Invalid, match=r"^invalid: one h tag only$"):
        group_of(event(alice, kind, ["h", "tea"], ["h", second]))


@pytest.mark.proves("N29-05")
@pytest.mark.parametrize("tag", [["h"], ["h", ""]])
def test_an_empty_h_is_invalid(tag: list[str]) -> None:
    with pytest.raises(Invalid, match=r"^invalid: h: "):
        group_of(event(alice, 9, tag))


def test_refused_roles_are_not_kept() -> None:
    """Each of the last 128 could take 4 MB, whoever had sent it."""
    before = actions._shared_roles.cache_info().misses
    assert refusal(9000, ["p", ID, *"123456789"]).startswith("invalid: p: 9 roles")
    assert refusal(9000, ["p", ID, "x" * 65]).startswith("invalid: p: a role")
    assert actions._shared_roles.cache_info().misses == before
