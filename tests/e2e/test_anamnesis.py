"""Anamnesis and `rookery anamnesis` on a real relay: three agents of two owners, and a group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from relay.client import Anamnesis, Client, PublishRefused
from relay.memory.anamnesis.checks import content_hash
from relay.memory.anamnesis.trust import Reputations
from relay.nostr.keys import SecretKey
from tests import cast
from tests.golden import document
from tests.harness.relay_program import Rookery, outputs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

pytestmark = pytest.mark.slow

GOLDEN: dict[str, Any] = document("memory/anamnesis.json")
NOON = "The relay at noon had 12 groups."
HASH = content_hash(NOON)
other_agent = cast.person("agent of another owner")
second_owner = cast.person("second owner")


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Desk:
    """A relay, and a terminal at which everybody of the cast may sit."""

    def __init__(self, rookery: Rookery, folder: Path) -> None:
        self.rookery = rookery
        self._folder = folder

    @property
    def url(self) -> str:
        return self.rookery.url

    async def run(self, who: SecretKey, *args: str) -> Said:
        key_file = self._folder / f"{who.pubkey[:16]}.nsec"
        if not key_file.exists():
            key_file.write_text(who.nsec)
            key_file.chmod(0o600)
        server = ("--relay", self.url, "--key-file", str(key_file))
        code, out, err = await outputs("anamnesis", *args, *server)
        return Said(code, out.decode(), err)

    async def document(self, who: SecretKey, hashed: str) -> dict[str, Any]:
        said = await self.run(who, "get", hashed, "--json")
        assert said.code == 0, said
        found = json.loads(said.out)
        assert isinstance(found, dict)
        return found


async def made(
    folder: Path, owners: Iterable[str], agents: Iterable[str], lines: Iterable[bytes] = ()
) -> Rookery:
    rookery = Rookery(folder)
    args = [arg for owner in owners for arg in ("--owner", owner)]
    args += [arg for agent in agents for arg in ("--agent", agent)]
    await rookery.init(*args)
    if lines:
        code, out, err = await outputs(
            "import", "-", "--data", str(folder), stdin=b"\n".join(lines)
        )
        assert code == 0, (out, err)
    return rookery


@pytest.fixture
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    """robot and rover are of one household; the other agent is of another."""
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = tmp_path / ".config/rookery"
    settings.mkdir(parents=True)
    (settings / "client.toml").write_text(
        f'[anamnesis]\nhouseholds = [["{cast.robot.npub}", "{cast.rover.pubkey}"]]\n'
    )
    owners = sorted((cast.owner, second_owner), key=lambda owner: owner.pubkey)
    agents = [agent.pubkey for agent in (cast.robot, cast.rover, other_agent)]
    async with await made(
        tmp_path / "relay", [owner.pubkey for owner in owners], agents
    ) as rookery:
        await rookery.start()
        yield Desk(rookery, tmp_path)


@pytest.mark.proves("X-12", "X-13", "X-14")
async def test_a_memory_is_vouched_for_disputed_and_the_word_taken_back(desk: Desk) -> None:
    assert await desk.run(cast.robot, "remember", NOON, "--tag", "relay") == (0, f"{HASH}\n", "")
    again = await desk.run(cast.robot, "remember", NOON)
    assert again == (0, f"{HASH}\n", "duplicate\n")
    assert (await desk.run(cast.rover, "trust", HASH[:8])).out == (
        "0.3 unverified (confirm 0, disputes 0, anchors 0)\n"
    )
    # A word of one's own household is stored and does not count.
    said = await desk.run(cast.rover, "vouch", HASH, "--name", "Rover")
    own = "this does not count: the memory is your own, or of your household\n"
    assert said == (0, f"vouched {HASH[:12]} 1\n", own)
    said = await desk.run(other_agent, "vouch", HASH[:10], "--confidence", "0.9")
    assert said == (0, f"vouched {HASH[:12]} 0.9\n", "")
    vouchers = (await desk.document(cast.robot, HASH))["vouchers"]
    assert {each["id"]: each["confidence"] for each in vouchers} == {
        cast.rover.pubkey: 1,
        other_agent.pubkey: 0.9,
    }
    assert (await desk.run(cast.robot, "trust", HASH)).out == (
        "0.48 attested (confirm 1, disputes 0, anchors 0)\n"
    )
    said = await desk.run(other_agent, "vouch", HASH, "--dispute")
    assert said == (0, f"disputed {HASH[:12]} 1\n", "")
    assert (await desk.run(cast.robot, "trust", HASH)).out == (
        "0.15 unverified (confirm 0, disputes 1, anchors 0)\n"
    )
    said = await desk.run(other_agent, "withdraw", HASH)
    assert said == (0, f"withdrawn {HASH[:12]}\n", "")
    assert (await desk.run(cast.robot, "trust", HASH)).out.startswith("0.3 unverified")
    said = await desk.run(other_agent, "withdraw", HASH)
    assert (said.code, said.out) == (1, "")
    said = await desk.run(cast.alice, "vouch", HASH)
    assert (said.code, said.out) == (1, "")
    assert "restricted: only agents and the owner may vouch" in said.err


@pytest.mark.proves("X-01", "X-03", "X-15", "X-20")
async def test_the_documents_example_is_written_from_the_command_line(desk: Desk) -> None:
    seed = GOLDEN["seed_entry"]["entry"]
    author = ("--author-id", seed["author"]["id"], "--author-name", "Babel")
    more = [arg for tag in seed["tags"] for arg in ("--tag", tag)]
    more += ["--type", "insight", "--confidence", "0.7", "--platform", "moltbook"]
    more += ["--context", "platform=moltbook"]
    more += ["--context", 'related_agents=["OttoBot","eudaemon_0"]']
    said = await desk.run(cast.robot, "remember", seed["content"], *author, *more)
    assert said == (0, f"{seed['content_hash']}\n", "")
    document = await desk.document(cast.rover, seed["content_hash"])
    assert document.pop("vouchers") == []
    assert {**document, "timestamp": seed["timestamp"]} == seed

    # A correction is of the same type, on the same topics, and as certain.
    better = f"{seed['content']} And who corrected it."
    new = (await desk.run(cast.robot, "supersede", seed["content_hash"], better)).out.strip()
    document = await desk.document(cast.rover, new)
    for field in ("memory_type", "tags", "confidence"):
        assert document[field] == seed[field]
    assert (document["parent_refs"], document.get("context")) == ([seed["content_hash"]], None)
    await desk.run(cast.robot, "amend", new, "--context", "platform=elsewhere")
    assert (await desk.document(cast.rover, new))["context"] == {"platform": "elsewhere"}
    said = await desk.run(cast.robot, "amend", new, "--context", "platform")
    assert (said.code, "'platform' is not KEY=VALUE" in said.err) == (2, True)


@pytest.mark.proves("X-18")
async def test_authors_are_shown_and_chosen_by_name(desk: Desk) -> None:
    async with Client(desk.url, cast.robot) as robot:
        await robot.send(0, '{"name":"Babel"}')
    await desk.run(cast.robot, "remember", NOON)
    await desk.run(other_agent, "remember", "At noon it rained.")
    said = await desk.run(cast.robot, "recall", "noon", "--author", "Babel")
    assert f"Babel ({cast.robot.npub[:20]}…)" in said.out
    assert "rained" not in said.out


@pytest.mark.proves("X-15", "X-17")
async def test_only_its_author_or_an_owner_corrects_a_memory(desk: Desk) -> None:
    corrected = "The relay at noon had 13 groups."
    new = content_hash(corrected)
    await desk.run(cast.robot, "remember", NOON)
    said = await desk.run(other_agent, "supersede", HASH, corrected)
    assert (said.code, said.out) == (1, "")
    assert "restricted: only the author or the owner may supersede a memory" in said.err
    # Nor is anything left of the try.
    said = await desk.run(cast.robot, "get", new)
    assert (said.code, said.out) == (1, "")
    assert f"unknown memory {new[:12]}" in said.err
    assert "superseded_by" not in await desk.document(cast.robot, HASH)

    assert await desk.run(cast.robot, "supersede", HASH[:8], corrected) == (0, f"{new}\n", "")
    old = await desk.document(other_agent, HASH)
    assert (old["content"], old["superseded_by"]) == (NOON, new)
    assert (await desk.document(other_agent, new))["parent_refs"] == [HASH]
    recalled = json.loads((await desk.run(other_agent, "recall", "noon groups", "--json")).out)
    assert [hit["hash"] for hit in recalled] == [new]
    said = await desk.run(other_agent, "recall", "noon", "--include-superseded", "--json")
    assert {hit["hash"] for hit in json.loads(said.out)} == {HASH, new}
    said = await desk.run(cast.robot, "supersede", new, NOON)
    assert (said.code, said.out) == (1, "")
    assert "invalid: supersession cycle" in said.err


@pytest.mark.proves("X-16", "X-17")
@pytest.mark.parametrize("who", [cast.owner, second_owner], ids=["one", "another"])
async def test_each_owner_may_put_an_agents_memory_in_anothers_place(
    desk: Desk, who: SecretKey
) -> None:
    await desk.run(cast.robot, "remember", NOON)
    better = "Twelve groups were open at noon."
    await desk.run(other_agent, "remember", better)
    said = await desk.run(who, "supersede", HASH, "what no agent wrote")
    assert (said.code, said.out) == (1, "")
    assert "restricted: only agents may write memory" in said.err
    new = content_hash(better)
    assert await desk.run(who, "supersede", HASH, better) == (0, f"{new}\n", "")
    assert (await desk.document(cast.robot, HASH))["superseded_by"] == new
    # An owner's word stands above the author's, also above a later one.
    later = "Twelve groups, or thirteen, were open at noon."
    assert (await desk.run(cast.robot, "supersede", HASH, later)).code == 0
    async with Anamnesis(desk.url, cast.rover) as memory:
        found = await memory.resolve(HASH)
    assert found.chain == (HASH, new)
    assert found.forks == ((HASH, content_hash(later)),)


@pytest.mark.proves("X-18", "X-19")
async def test_recall_ranks_what_the_relays_search_finds(desk: Desk) -> None:
    async with (
        Anamnesis(desk.url, cast.robot, {"id": "r", "name": "Robot"}) as robot,
        Anamnesis(desk.url, other_agent) as other,
    ):
        plain = await robot.remember("Gardens need rain in spring.")
        vouched = await robot.remember(
            "The garden had rain yesterday.", anchors=["https://a.example"]
        )
        await robot.remember("Nobody came to the meeting.")
        await other.vouch(vouched, 0.8)
        hits = await other.recall("garden rain")
        assert robot.shortfall == ""
        assert [hit.hash for hit in hits] == [vouched, plain]
        assert hits[0].document["vouchers"] != []
        assert hits[0].why.startswith("text ")
        assert [hit.hash for hit in await other.recall("garden", min_trust=0.5)] == [vouched]
        # When nothing has all of the words, what has most of them.
        asked = await other.recall("which garden had no rain yesterday")
        assert next(hit.hash for hit in asked) == vouched
        assert await other.recall("rain -garden -gardens") == []
        assert await other.recall("") == []
        await robot.amend(plain, tags=["botany"])
        assert [hit.hash for hit in await other.recall("botany")] == [plain]
        assert [hit.hash for hit in await other.recall("rain", topics=["botany"])] == [plain]
        assert [memory.hash for memory in await other.children(plain)] == []


@pytest.mark.proves("X-22")
async def test_what_is_remembered_in_a_group_is_its_members_alone(desk: Desk) -> None:
    group = "den"
    async with Client(desk.url, cast.owner) as owner:
        await owner.send(9007, "", [["h", group]])
        for member in (cast.robot, cast.alice):
            await owner.send(9000, "", [["h", group], ["p", member.pubkey]])
    said = await desk.run(cast.robot, "remember", NOON, "--group", group)
    assert said == (0, f"{HASH}\n", "")
    await desk.run(cast.robot, "vouch", HASH)
    await desk.run(cast.owner, "vouch", HASH, "--name", "Owner")
    corrected = "At noon it had 13 groups."
    new = content_hash(corrected)
    assert (await desk.run(cast.robot, "supersede", HASH, corrected)).out == f"{new}\n"

    seen = await desk.document(cast.alice, HASH)
    assert [each["name"] for each in seen["vouchers"]] == ["Owner"]
    assert seen["superseded_by"] == new
    for hashed in (HASH, new):
        said = await desk.run(other_agent, "get", hashed)
        assert (said.code, said.out) == (1, "")
        assert f"unknown memory {hashed[:12]}" in said.err
    said = await desk.run(other_agent, "recall", "noon", "--include-superseded", "--json")
    assert json.loads(said.out) == []
    async with Client(desk.url, other_agent) as outside:
        assert await outside.query({"#x": [HASH, new]}) == []
    # What leaves in a file leaves by name: not with the memories outside of groups.
    file = str(desk.rookery.folder.parent / "out.jsonl")
    assert (await desk.run(cast.alice, "export", file)).out == "exported 0\n"
    assert (await desk.run(cast.alice, "export", file, "--group", group)).out == "exported 2\n"


async def test_entries_go_from_relay_to_relay_as_files(desk: Desk, tmp_path: Path) -> None:
    child = "Trust was talked of at noon."
    await desk.run(cast.robot, "remember", NOON, "--author-id", "r2", "--author-name", "R2")
    await desk.run(cast.robot, "remember", child, "--parent", HASH[:8], "--type", "insight")
    await desk.run(other_agent, "vouch", HASH)
    file = tmp_path / "entries.jsonl"
    assert (await desk.run(cast.rover, "export", str(file))).out == "exported 2\n"
    documents = {
        document["content"]: document for document in map(json.loads, file.read_text().splitlines())
    }
    assert documents.keys() == {NOON, child}
    assert documents[NOON]["author"] == {"id": "r2", "name": "R2"}
    with file.open("a") as lines:
        lines.write('\n{"content":"bad"}\n')
    async with await made(tmp_path / "b", [cast.owner.pubkey], [cast.rover.pubkey]) as other:
        await other.start()
        elsewhere = Desk(other, tmp_path)
        for counts in ("stored 2, duplicates 0", "stored 0, duplicates 2"):
            said = await elsewhere.run(cast.rover, "import", str(file))
            assert (said.code, said.out) == (1, f"{counts}, refused 1\n")
            assert said.err.startswith("line 4: content.author must be an object; ")
            assert "1 entries: unsigned vouchers and successors are kept as claimed" in said.err
        found = await elsewhere.document(cast.rover, content_hash(child))
        assert found == documents[child]
        found = await elsewhere.document(cast.rover, HASH)
        assert found["claimed"] == {"vouchers": documents[NOON]["vouchers"]}
        assert found["vouchers"] == []
        said = await elsewhere.run(cast.rover, "trace", content_hash(child))
        assert said.out == f"{content_hash(child)[:12]} {child}\n└─ {HASH[:12]} {NOON}\n"


@pytest.mark.proves("X-09", "X-13", "X-17")
async def test_what_others_wrote_is_read_and_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = {name: SecretKey.parse(key["nsec"]) for name, key in GOLDEN["keys"].items()}
    events = [
        *GOLDEN["dag"]["events"],
        GOLDEN["seed_entry"]["event"],
        *GOLDEN["vouches"]["events"],
    ]
    async with await made(
        tmp_path / "relay",
        [keys["owner"].pubkey],
        [keys["agent"].pubkey, keys["agent2"].pubkey],
        [json.dumps(event).encode() for event in events],
    ) as rookery:
        await rookery.start()
        desk = Desk(rookery, tmp_path)
        for wanted in (GOLDEN["dag"]["trace_of_C"], GOLDEN["dag"]["trace_of_E"]):
            said = await desk.run(keys["agent2"], "trace", wanted["hash"], "--json")
            found = json.loads(said.out)
            assert [found[name] for name in ("order", "depth", "missing")] == [
                wanted[name] for name in ("order", "depth", "missing")
            ]
        async with Anamnesis(desk.url, keys["agent2"], reputations=Reputations()) as memory:
            first = GOLDEN["dag"]["trace_of_C"]["order"][0]
            children = [child.hash for child in await memory.children(first)]
            assert children == GOLDEN["dag"]["children_of_A"]
            credits_ = await memory.credit(GOLDEN["dag"]["trace_of_C"]["hash"])
            assert sum(each.entries for each in credits_) == 3
            with pytest.raises(PublishRefused, match="only the author or the owner"):
                await memory.supersede(first, "not mine to correct")
        seed = GOLDEN["seed_entry"]["entry"]
        document = await desk.document(keys["agent"], seed["content_hash"])
        by_time = sorted(GOLDEN["vouches"]["merged_after_all"], key=lambda each: each["timestamp"])
        assert sorted(document.pop("vouchers"), key=lambda each: each["timestamp"]) == by_time
        assert document == seed
        said = await desk.run(keys["agent"], "trust", seed["content_hash"])
        assert said.out == "0.5 attested (confirm 2, disputes 0, anchors 0)\n"
