"""`rookery group`, against a fake relay with a minimal NIP-29."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from nostr_sdk import Nip19Coordinate

from relay.cli.group_view import naddr_of
from relay.nostr import kinds
from relay.nostr.event import event_from, made_from
from relay.nostr.keys import SecretKey
from tests.cast import alice, bob, owner, person
from tests.harness.fake_relay import FakeRelay, refusing
from tests.unit.cli.terminal import Rookery, command_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.fake_relay import Visitor

FLAGS = ["private", "restricted", "closed", "hidden"]


class GroupRelay(FakeRelay):
    """Takes every moderation event and says in 39000–39002 what it made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.key = person("the relay itself")
        self.information = {"self": self.key.pubkey}
        self.defaults = ["private", "restricted", "closed"]
        self.always: list[str] = []
        self.reads_creation = True
        self.users: dict[str, dict[str, list[str]]] = {}
        self.on["EVENT"] = self.moderate
        self.challenges_at_once = True
        self._stamp = 1_700_000_000

    async def moderate(self, visitor: Visitor, frame: list[Any]) -> None:
        event = event_from(frame[1])
        group = event.tag("h") or ""
        match event.kind:
            case kinds.CREATE_GROUP if group in self.users:
                await visitor.say_no(event.id, "duplicate: this id is in use")
                return
            case kinds.CREATE_GROUP:
                self.users[group] = {event.pubkey: ["admin"]}
                said = event.tags if self.reads_creation else []
                if not any(tag[0] in FLAGS for tag in said):
                    said = [*said, *([flag] for flag in self.defaults)]
                self.state(kinds.GROUP_METADATA, group, self.metadata(said))
            case _ if "admin" not in self.users.get(group, {}).get(event.pubkey, []):
                await visitor.say_no(event.id, "restricted: not an admin")
                return
            case kinds.EDIT_METADATA:
                self.state(kinds.GROUP_METADATA, group, self.metadata(event.tags))
            case kinds.PUT_USER:
                for _, user, *roles in (tag for tag in event.tags if tag[0] == "p"):
                    self.users[group][user] = roles
            case kinds.REMOVE_USER:
                for user in event.tag_values("p"):
                    self.users[group].pop(user, None)
        users = self.users[group]
        admins = [["p", user, *roles] for user, roles in users.items() if roles]
        self.state(kinds.GROUP_ADMINS, group, admins)
        self.state(kinds.GROUP_MEMBERS, group, [["p", user] for user in users])
        await self.take(visitor, frame)

    def metadata(self, tags: list[list[str]]) -> list[list[str]]:
        said = [tag for tag in tags if tag[0] in (*FLAGS, "name", "about", "picture")]
        return [*said, *([flag] for flag in self.always if [flag] not in said)]

    def state(self, kind: int, group: str, tags: list[list[str]]) -> None:
        self._stamp += 1
        self.forget(kind, group)
        self.events.append(self.key.sign(kind, [["d", group], *tags], "", self._stamp))

    def forget(self, kind: int, group: str) -> None:
        self.events = [e for e in self.events if (e.kind, e.d) != (kind, group)]

    def sent(self, kind: int) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def flags(self, group: str) -> set[str]:
        (metadata,) = [e for e in self.sent(kinds.GROUP_METADATA) if e.d == group]
        return {tag[0] for tag in metadata.tags} & set(FLAGS)


@pytest.fixture
async def relay() -> AsyncIterator[GroupRelay]:
    async with GroupRelay() as relay:
        yield relay


@pytest.fixture
def rookery(relay: GroupRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rookery:
    return command_line("group", relay, owner, tmp_path, monkeypatch)


async def test_a_group_is_created_with_its_metadata(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rookery("create", "tea", "--name", "Tea room", "--about", "All of it") == 0
    (created,) = relay.sent(kinds.CREATE_GROUP)
    assert created.pubkey == owner.pubkey
    assert created.tags == [["h", "tea"], ["name", "Tea room"], ["about", "All of it"]]
    assert relay.flags("tea") == {"private", "restricted", "closed"}
    assert relay.sent(kinds.EDIT_METADATA) == []
    assert capsys.readouterr().out == "created tea (private, restricted, closed)\n"


async def test_a_group_without_an_id_gets_one_that_nobody_can_guess(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rookery("create", "--name", "Tea room") == 0
    assert await rookery("create", "--hidden") == 0
    ids = [event.tag("h") or "" for event in relay.sent(kinds.CREATE_GROUP)]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"[0-9a-f]{16}", each) for each in ids)
    assert capsys.readouterr().out.splitlines()[0].startswith(f"created {ids[0]} (")
    assert await rookery("create", "") == 2


async def test_giving_one_flag_keeps_the_others_on(relay: GroupRelay, rookery: Rookery) -> None:
    relay.defaults = []
    assert await rookery("create", "cellar", "--hidden") == 0
    assert relay.flags("cellar") == {"private", "restricted", "closed", "hidden"}
    assert await rookery("create", "shop", "--public") == 0
    assert relay.flags("shop") == {"restricted", "closed"}


async def test_an_open_group_is_open_on_a_relay_with_closed_defaults(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rookery("create", "square", "--public", "--unrestricted", "--open") == 0
    assert relay.flags("square") == set()
    (edited,) = relay.sent(kinds.EDIT_METADATA)
    assert ["public"] in edited.tags, "the word that confirms it"
    assert "open to all" in capsys.readouterr().out


async def test_an_edit_of_a_group_that_was_changed_meanwhile_is_made_again(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = "duplicate: the group was changed meanwhile"
    others = 0

    async def another_was_faster(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal others
        others += 1
        if others == 5:
            relay.on["EVENT"] = relay.moderate
        tags = [["name", f"Tea {others}"], ["private"]]
        relay.state(kinds.GROUP_METADATA, "tea", tags)
        await visitor.say_no(frame[1]["id"], changed)

    assert await rookery("create", "tea", "--public", "--open", "--unrestricted") == 0
    relay.on["EVENT"] = another_was_faster
    assert await rookery("edit", "tea", "--about", "All of it") == 0
    assert relay.flags("tea") == {"private"}
    edited = relay.sent(kinds.EDIT_METADATA)[-1]
    said = [["h", "tea"], ["about", "All of it"], ["name", "Tea 5"], ["private"]]
    assert edited.tags[:-1] == said
    assert edited.tags[-1][0] == "made-from"
    relay.on["EVENT"] = refusing(changed)
    tried = len(relay.verbs("EVENT"))
    assert await rookery("edit", "tea", "--about", "Nothing") == 1
    assert len(relay.verbs("EVENT")) == tried + 2
    assert changed in capsys.readouterr().err


async def test_a_pin_is_made_again_on_the_pins_that_others_set_meanwhile(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = "duplicate: the group was changed meanwhile"
    first, second = "1" * 64, "2" * 64

    async def another_was_faster(visitor: Visitor, frame: list[Any]) -> None:
        relay.state(kinds.GROUP_PINS, "tea", [["e", first]])
        relay.on["EVENT"] = relay.moderate
        await visitor.say_no(frame[1]["id"], changed)

    assert await rookery("create", "tea") == 0
    relay.on["EVENT"] = another_was_faster
    assert await rookery("pin", "tea", second) == 0
    (sent,) = relay.sent(kinds.UPDATE_PINS)
    (base,) = relay.sent(kinds.GROUP_PINS)
    assert sent.tags == [["h", "tea"], ["e", first], ["e", second], made_from(base)]
    relay.on["EVENT"] = refusing(changed)
    tried = len(relay.verbs("EVENT"))
    assert await rookery("pin", "tea", first, "--remove") == 1
    assert len(relay.verbs("EVENT")) == tried + 2
    assert changed in capsys.readouterr().err


async def test_flags_the_relay_enforces_are_reported(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.always = ["private", "closed"]
    assert await rookery("create", "square", "--public", "--unrestricted", "--open") == 0
    out, err = capsys.readouterr()
    assert out == "created square (private, closed)\n"
    assert err == "the relay does not allow turning off: private, closed\n"


async def test_an_edit_of_which_the_relay_did_nothing_fails(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.always = ["private", "closed"]
    assert await rookery("create", "tea") == 0
    capsys.readouterr()
    assert await rookery("edit", "tea", "--public", "--open") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing changed: the relay does not allow turning off: private, closed" in err
    assert await rookery("edit", "tea", "--public", "--json") == 1
    assert json.loads(capsys.readouterr().out)["refused"] == ["private"]


async def test_an_edit_of_which_the_relay_did_a_part_names_the_rest(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.always = ["private"]
    assert await rookery("create", "tea") == 0
    capsys.readouterr()
    assert await rookery("edit", "tea", "--public", "--open") == 0
    assert capsys.readouterr() == (
        "changed tea (private, restricted)\n",
        "the relay does not allow turning off: private\n",
    )
    assert await rookery("edit", "tea", "--public", "--about", "Oolong", "--json") == 0
    assert json.loads(capsys.readouterr().out)["refused"] == ["private"]


async def test_a_relay_that_ignores_9007_tags_gets_a_9002(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.reads_creation = False
    assert await rookery("create", "tea", "--name", "Tea room", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "Tea room"
    assert shown["flags"] == ["private", "restricted", "closed"], "as it made them"


async def test_an_id_in_use_is_refused(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea")
    assert await rookery("create", "tea") == 1
    assert capsys.readouterr().err.endswith("refused: duplicate: this id is in use\n")


async def test_users_are_added_with_roles_and_removed(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea")
    assert await rookery("add", "tea", alice.npub, "--role", "admin", "--role", "agent") == 0
    assert await rookery("add", "tea", bob.pubkey) == 0
    assert relay.users["tea"][alice.pubkey] == ["admin", "agent"]
    assert relay.users["tea"][bob.pubkey] == []
    assert f"added {bob.npub} to tea" in capsys.readouterr().out
    assert await rookery("remove", "tea", alice.npub, bob.npub) == 0
    assert relay.users["tea"].keys() == {owner.pubkey}


async def test_a_refusal_names_the_key_and_how_to_use_another(
    relay: GroupRelay,
    rookery: Rookery,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await rookery("create", "tea")
    capsys.readouterr()
    key_file = tmp_path / "bob.nsec"
    key_file.write_text(bob.nsec)
    assert await rookery("add", "tea", bob.npub, "--key-file", str(key_file)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "refused: restricted: not an admin" in line
    assert bob.npub in line
    assert "--key-file" in line


async def test_removing_a_non_member_is_reported(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea")
    await rookery("add", "tea", alice.npub)
    capsys.readouterr()
    assert await rookery("remove", "tea", alice.npub, bob.npub) == 0
    out, err = capsys.readouterr()
    assert out == f"removed {alice.npub} from tea\n"
    assert err == f"not in tea: {bob.npub}\n"
    assert await rookery("remove", "tea", bob.npub) == 0, "a request to join may have waited"
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"not in tea: {bob.npub}\n")

    relay.on["EVENT"] = refusing("invalid: p: none of these keys is a member")
    assert await rookery("remove", "tea", bob.npub) == 1
    assert capsys.readouterr().err == f"rookery: not in tea: {bob.npub}\n"
    assert await rookery("remove", "tea", owner.npub) == 1
    assert "none of these keys is a member" in capsys.readouterr().err


async def test_an_unlisted_role_is_given_only_if_one_insists(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea")
    await rookery("add", "tea", alice.npub, "--role", "moderator")
    relay.state(kinds.GROUP_ROLES, "tea", [["role", "admin", ""], ["role", "moderator", ""]])
    capsys.readouterr()
    assert await rookery("add", "tea", alice.npub, "--role", "moderatr") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "tea has no role 'moderatr', only admin, moderator, agent" in line
    assert "did you mean 'moderator'?" in line
    assert relay.users["tea"][alice.pubkey] == ["moderator"]
    assert await rookery("add", "tea", alice.npub, "--role", "moderatr", "--anyway") == 0
    assert relay.users["tea"][alice.pubkey] == ["moderatr"]
    for role in ("moderator", "agent", "moderatr"):
        assert await rookery("add", "tea", bob.npub, "--role", role) == 0, role
        assert capsys.readouterr().err == "", role


async def test_any_role_is_accepted_if_the_relay_lists_none(
    relay: GroupRelay, rookery: Rookery
) -> None:
    await rookery("create", "tea")
    assert await rookery("add", "tea", alice.npub, "--role", "brewer") == 0
    assert relay.users["tea"][alice.pubkey] == ["brewer"]


@pytest.mark.parametrize(
    ("refusal", "is_of_address"),
    [
        ("invalid: relay: is not this relay's URL", True),
        ("restricted: this key is banned here", False),
        ("restricted: you are no member of this relay", False),
        ("invalid: created_at: must be within 600 seconds of now", False),
    ],
)
async def test_a_refused_login_mentions_the_url_only_if_relevant(
    relay: GroupRelay,
    rookery: Rookery,
    capsys: pytest.CaptureFixture[str],
    refusal: str,
    is_of_address: bool,  # noqa: FBT001
) -> None:
    relay.on["AUTH"] = refusing(refusal)
    assert await rookery("list") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"refused the login of {owner.npub}: {refusal}" in line
    assert ("[relay] url" in line) is is_of_address


async def test_groups_are_listed(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rookery("list") == 0
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err == "nothing found; `rookery group create ID` creates a group\n"
    await rookery("create", "tea", "--name", "Tea room")
    await rookery("create", "art")
    await rookery("add", "tea", bob.npub)
    capsys.readouterr()
    assert await rookery("list", "--json") == 0
    art, tea = json.loads(capsys.readouterr().out)
    assert (art["id"], tea["id"], tea["name"]) == ("art", "tea", "Tea room")
    assert tea["members"] == [owner.pubkey, bob.pubkey]
    assert tea["admins"] == {owner.pubkey: ["admin"]}
    assert await rookery("list") == 0
    out = capsys.readouterr().out
    assert "Tea room" in out
    assert "private, restricted, closed" in out


async def test_lists_that_this_key_may_not_read_are_not_counted_as_empty(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea")
    hidden = (kinds.GROUP_ADMINS, kinds.GROUP_MEMBERS)
    relay.events[:] = [event for event in relay.events if event.kind not in hidden]
    capsys.readouterr()
    assert await rookery("list") == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split()[-2:] == ["–", "–"]


async def test_group_events_signed_by_others_are_ignored(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.events.append(bob.sign(kinds.GROUP_METADATA, [["d", "fake"]], "", 1_700_000_000))
    assert await rookery("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


async def test_a_group_is_shown_with_members_and_roles(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea", "--name", "Tea room")
    await rookery("add", "tea", bob.npub)
    capsys.readouterr()
    assert await rookery("show", "tea") == 0
    out = capsys.readouterr().out
    for text in ("tea: private", "name: Tea room", owner.npub, "admin", bob.npub):
        assert text in out


async def test_an_unreadable_member_list_is_reported(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea")
    relay.forget(kinds.GROUP_MEMBERS, "tea")
    capsys.readouterr()
    assert await rookery("show", "tea") == 0
    assert "this key may not read the member list" in capsys.readouterr().out
    assert await rookery("show", "tea", "--json") == 0
    assert json.loads(capsys.readouterr().out)["members"] is None


async def test_an_unknown_group_is_reported(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rookery("show", "nowhere") == 1
    assert "no group 'nowhere' is visible to this key" in capsys.readouterr().err


async def test_names_are_printed_without_control_characters(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea", "--name", "\x1b[31mred[bold]")
    for command in (["list"], ["show", "tea"]):
        assert await rookery(*command) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "red[bold]" in out


@pytest.mark.parametrize(
    ("refusal", "advice"),
    [
        ("restricted: the group is closed: needs an invite code", "`rookery group invite`\n"),
        (
            "restricted: not a member",
            f"`rookery group add tea {owner.npub}`; list its groups with `rookery group list`\n",
        ),
        ("blocked: no links here", "refused: blocked: no links here\n"),
    ],
)
async def test_the_advice_fits_the_refusal(
    relay: GroupRelay,
    rookery: Rookery,
    capsys: pytest.CaptureFixture[str],
    refusal: str,
    advice: str,
) -> None:
    await rookery("create", "tea")
    relay.on["EVENT"] = refusing(refusal)
    assert await rookery("join", "tea") == 1
    assert capsys.readouterr().err.endswith(advice)


async def test_a_message_to_a_group_that_one_does_not_see_names_the_group(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.information = {"self": relay.key.pubkey, "supported_nips": [29]}
    await rookery("create", "tea")
    capsys.readouterr()
    relay.on["EVENT"] = refusing("restricted: not a member")
    assert await rookery("say", "tae", "hi") == 1
    said = "rookery: no group 'tae' is visible to this key; `rookery group list` lists groups\n"
    assert capsys.readouterr().err == said
    assert await rookery("say", "tea", "hi") == 1
    assert "not a member; signed with" in capsys.readouterr().err


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize(("command", "words"), [("group", ["say", "tea", "-"]), ("chat", ["tea"])])
async def test_no_bytes_that_are_no_text_are_sent(
    relay: GroupRelay,
    rookery: Rookery,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    words: list[str],
    errors: str,
) -> None:
    relay.information = {"self": relay.key.pubkey, "supported_nips": [29]}
    await rookery("create", "tea")
    capsys.readouterr()
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff{\n"), "utf-8", errors)
    monkeypatch.setattr("sys.stdin", stdin)
    assert await command_line(command, relay, owner, tmp_path, monkeypatch)(*words) == 1
    assert capsys.readouterr().err == "rookery: stdin is not UTF-8 text\n"
    assert relay.sent(kinds.CHAT) == []


@pytest.mark.proves("N19-02")
async def test_an_invite_is_a_code_and_a_link(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea")
    capsys.readouterr()
    assert await rookery("invite", "tea", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert await rookery("invite", "tea", "--json") == 0
    second = json.loads(capsys.readouterr().out)
    assert first["code"] != second["code"]
    assert len(first["code"]) >= 8
    assert first["code"].isalnum(), "no option of a command"
    assert first["link"].startswith("naddr1")
    address = Nip19Coordinate.from_bech32(first["link"].partition("?")[0])
    coordinate = address.coordinate()
    assert (coordinate.kind().as_u16(), coordinate.identifier()) == (39000, "tea")
    assert coordinate.public_key().to_hex() == relay.key.pubkey
    assert [str(url) for url in address.relays()] == [relay.url]
    assert first["link"].endswith(f"?invite={first['code']}")
    assert relay.sent(kinds.CREATE_INVITE)[0].tags == [["h", "tea"], ["code", first["code"]]]


async def test_the_code_in_a_link_is_sent_to_the_relay_of_the_link_only(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    home = naddr_of("tea", relay.key.pubkey, relay.url)
    elsewhere = naddr_of("tea", relay.key.pubkey, "wss://tea.example.org;x")
    assert await rookery("join", f"{elsewhere}?invite=come-to-tea") == 1
    assert capsys.readouterr().err.endswith("add --relay 'wss://tea.example.org;x'\n")
    safe = naddr_of("tea", relay.key.pubkey, relay.url.replace("ws:", "wss:"))
    assert await rookery("join", f"{safe}?invite=come-to-tea") == 1, "not in clear text"
    assert relay.sent(kinds.JOIN_REQUEST) == []
    await rookery("create", "tea")
    assert await rookery("join", f"{home}?invite=come-to-tea") == 0
    (request,) = relay.sent(kinds.JOIN_REQUEST)
    assert request.tags == [["h", "tea"], ["code", "come-to-tea"]]


async def test_an_invite_may_expire_and_be_reusable(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await rookery("create", "tea")
    code = "come-to-tea"
    assert await rookery("invite", "tea", "--code", code, "--days", "2", "--reusable") == 0
    assert "for   any number of keys, until 2" in capsys.readouterr().out
    (invite,) = relay.sent(kinds.CREATE_INVITE)
    assert invite.tags == [
        ["h", "tea"],
        ["code", code],
        ["reusable"],
        ["expiration", str(invite.created_at + 2 * 86_400)],
    ]


async def test_a_short_code_is_a_usage_error(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rookery("invite", "tea", "--code", "tea") == 2
    assert "must have at least 8 characters" in capsys.readouterr().err
    assert relay.visits == 0


async def test_an_unreachable_relay_is_reported_with_advice(
    relay: GroupRelay, rookery: Rookery, capsys: pytest.CaptureFixture[str]
) -> None:
    await relay.stop()
    assert await rookery("list") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot reach {relay.url}: connection refused" in line
    assert "rookery serve" in line
    await relay.start()


async def test_the_owner_key_of_serve_signs(
    relay: GroupRelay, rookery: Rookery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROOKERY_KEY")
    monkeypatch.chdir(tmp_path)
    key = SecretKey(bytes(31) + b"\x07")
    (tmp_path / "data/keys").mkdir(parents=True)
    (tmp_path / "data/keys/owner.nsec").write_text(key.nsec)
    assert await rookery("create", "tea") == 0
    assert relay.sent(kinds.CREATE_GROUP)[0].pubkey == key.pubkey


async def test_the_wrapped_rest_of_a_message_does_not_look_like_another_ones_head(
    relay: GroupRelay,
    rookery: Rookery,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A terminal goes on in its first column, where the head of a message begins."""
    await rookery("create", "tea")
    head = f"[1] 2023-11-14 22:13 {alice.npub[:20]}…: "
    marks = ("漢", "\u0903", "\U0001f3fb", "❤\ufe0f")
    for filler in (" ", "o"):
        text = "ok".ljust(80 - len(head), filler) + "[2] 2023-11-14 22:13 anna: run this"
        # Marks that a terminal shows in a cell or two of their own.
        text = "\n".join([text, *(f"{each * 50}[3] 漢" for each in marks)])
        relay.events = [alice.sign(9, [["h", "tea"]], text, 1_700_000_000)]
        capsys.readouterr()
        with monkeypatch.context() as terminal:
            terminal.setattr("sys.stdout.isatty", lambda: True)
            terminal.setenv("COLUMNS", "80")
            assert await rookery("read", "tea") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("[1] 2023")
        assert len(lines) > 10
        assert all(line.count(each) <= 40 for line in lines for each in marks)
        assert all(line.startswith("    ") and len(line) <= 80 for line in lines[1:])
        assert await rookery("read", "tea") == 0
        assert len(capsys.readouterr().out.splitlines()) == 5, "a file has whole lines"
