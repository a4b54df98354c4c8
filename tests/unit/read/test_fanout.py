"""relay/read/fanout.py: a committed row goes to those who ask for it and may read it now.

NIPS.md N01-78…83, N29-94…101, N42-13, N46-03; contract §7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from relay.access.visibility import Viewer
from relay.groups.group import Flag, Group, Groups
from relay.lifecycle.rows import Stored
from relay.nostr import kinds
from relay.read.fanout import Fanout, Subscription
from relay.read.outbox import FlushQueue, Outbox
from relay.state import RelayState
from tests.cast import admin, alice, bob, carol, owner, stranger
from tests.contract.writing import asked, group_of, unsigned
from tests.unit.policies.folders import loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from policies import PolicySet
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey

DEN = Group("den", flags=frozenset({Flag.PRIVATE})).with_users(
    {admin.pubkey: ("admin",), alice.pubkey: ()}
)
IN_DEN = ["h", "den"]


class Client:
    """A connection that is logged in as some people: who reads, and where the bytes end."""

    def __init__(self, *people: SecretKey, max_bytes: int = 1 << 20) -> None:
        self.viewer = Viewer(frozenset(key.pubkey for key in people))
        self.written = b""
        self.too_slow: Callable[[], None] = lambda: pytest.fail("not that much")
        self.outbox = Outbox(
            self, FlushQueue(lambda _: None), max_bytes=max_bytes, overflow=lambda: self.too_slow()
        )

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def frames(self) -> list[list[Any]]:
        """Everything received since the last look."""
        self.outbox.flush()
        data, self.written, frames = self.written, b"", []
        while data:
            size, head = data[1], 2
            if size > 125:
                head = 4 if size == 126 else 10
                size = int.from_bytes(data[2:head])
            frames.append(orjson.loads(data[head : head + size]))
            data = data[head + size :]
        return frames

    def reads(self) -> list[str]:
        """What the events received since the last look say."""
        return [frame[2]["content"] for frame in self.frames()]


@dataclass
class Scene:
    state: RelayState
    fanout: Fanout
    head: int = 0
    """seq of the newest row."""

    def opens(
        self,
        client: Client,
        *filters: Filter,
        sub: str = "s",
        cursor: int | None = None,
        max_backlog: int = 100,
    ) -> Subscription:
        """A REQ whose stored rows are still being read."""
        subscription = Subscription(
            sub,
            filters or (asked(),),
            client,
            client.outbox,
            self.head if cursor is None else cursor,
            max_backlog=max_backlog,
        )
        self.fanout.open(subscription)
        return subscription

    def follows(self, client: Client, *filters: Filter, sub: str = "s") -> Subscription:
        """A REQ that has had its EOSE."""
        subscription = self.opens(client, *filters, sub=sub)
        self.fanout.release_backlog(subscription)
        return subscription

    def commits(self, *events: Event, quiet: bool = False) -> int:
        rows = []
        for event in events:
            if kinds.is_ephemeral(event.kind):
                rows.append(Stored(0, event, group_of(event)))
                continue
            self.head += 1
            rows.append(Stored(self.head, event, group_of(event), quiet))
        return self.fanout.deliver(rows)

    def den_becomes(self, den: Group) -> None:
        self.state.adopt(self.state.groups.with_group(den))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    return loaded(tmp_path_factory.mktemp("policies"), actors=f'[actors]\nowners=["{owner.npub}"]')


@pytest.fixture
def scene(policy: PolicySet) -> Scene:
    state = RelayState(policy, Groups().with_group(DEN))
    return Scene(state, Fanout(state))


def chat(text: str, who: SecretKey = admin) -> Event:
    return unsigned(who, 9, [IN_DEN], text)


def note(text: str, **changes: Any) -> Event:
    return unsigned(**{"who": admin, "content": text, **changes})


# who asked ---------------------------------------------------------------------------------------


@pytest.mark.proves("N01-82")
def test_everyone_who_asked_gets_it_the_author_too(scene: Scene) -> None:
    """N01-82: in the order of the commit."""
    author, other, elsewhere = Client(), Client(), Client()
    for client in (author, other):
        scene.follows(client, asked(kinds=[1]))
    scene.follows(elsewhere, asked(kinds=[7]), asked(kinds=[1], until=5))
    assert scene.commits(note("tea?"), note("yes", who=bob), unsigned(bob, 3)) == 4
    assert author.reads() == other.reads() == ["tea?", "yes"]
    assert elsewhere.frames() == []


@pytest.mark.proves("N01-90")
def test_a_frame_is_for_the_subscription_that_asked(scene: Scene) -> None:
    """N01-90, N01-53: equal ids on two connections are unrelated."""
    alices, bobs = Client(), Client()
    scene.follows(alices, sub='a "b" \\')
    scene.follows(alices, sub="other")
    scene.follows(bobs, sub="other")
    event = note("tea?")
    scene.commits(event)
    frame = orjson.loads(event.raw)
    assert sorted(alices.frames()) == [["EVENT", 'a "b" \\', frame], ["EVENT", "other", frame]]
    assert bobs.frames() == [["EVENT", "other", frame]]


def test_an_event_that_several_filters_want_comes_once(scene: Scene) -> None:
    """N01-63: of one REQ; two REQs get it each."""
    client = Client()
    scene.follows(client, asked(kinds=[1]), asked(authors=[admin.pubkey]), asked(tag_t=["a", "b"]))
    scene.follows(client, asked(kinds=[1]), sub="t")
    event = note("tea?", tags=[["t", "a"], ["t", "b"]])
    assert scene.commits(event, note("more")) == 4
    assert [frame[1] for frame in client.frames()].count("s") == 2


def test_age_and_limit_say_nothing_about_what_comes_live(scene: Scene) -> None:
    """N01-78, N01-79, N01-83."""
    client = Client()
    scene.follows(client, asked(limit=0))
    scene.commits(note("old", at=1), note("new", at=2**40), note("old again", at=1))
    assert client.reads() == ["old", "new", "old again"]


@pytest.mark.proves("N01-56", "N01-90")
def test_whoever_closed_hears_no_more(scene: Scene) -> None:
    """N01-56."""
    client = Client()
    open_, waiting = scene.follows(client), scene.opens(client, sub="w")
    for subscription in (open_, waiting, open_):
        scene.fanout.close(subscription)
    assert scene.commits(note("tea?")) == 0
    assert client.frames() == []
    assert len(scene.fanout) == 0


# who may read ------------------------------------------------------------------------------------


def test_a_removed_member_stops_receiving_at_once(scene: Scene) -> None:
    """N29-94, G-20: and nobody else does."""
    alices, admins, strangers = Client(alice), Client(admin), Client(stranger)
    for client in (alices, admins, strangers):
        scene.follows(client, asked(kinds=[9]))
    scene.commits(chat("for us"))
    scene.den_becomes(DEN.without_users({alice.pubkey}, removed_at=1))
    scene.commits(chat("not for alice any more"))
    assert alices.reads() == ["for us"]
    assert admins.reads() == ["for us", "not for alice any more"]
    assert strangers.reads() == []


def test_an_added_member_receives_without_asking_again(scene: Scene) -> None:
    """N29-95, G-20."""
    client = Client(bob)
    scene.follows(client, asked(kinds=[9], tag_h=["den"]))
    scene.commits(chat("before"))
    scene.den_becomes(DEN.with_users({bob.pubkey: ()}))
    scene.commits(chat("welcome"))
    assert client.reads() == ["welcome"]


def test_another_key_of_the_connection_may_still_be_a_member(scene: Scene) -> None:
    """N29-94, N42-07."""
    client = Client(alice, admin)
    scene.follows(client)
    scene.den_becomes(DEN.without_users({alice.pubkey}, removed_at=1))
    scene.commits(chat("for admin"))
    assert client.reads() == ["for admin"]


@pytest.mark.proves("N42-13", "N42-16")
def test_the_keys_of_this_moment_count(scene: Scene) -> None:
    """N42-13: live checks use the connection's current keys."""
    client = Client()
    scene.follows(client)
    scene.commits(chat("before the login"))
    client.viewer = Viewer(frozenset({alice.pubkey}))
    scene.commits(chat("after it"))
    assert client.reads() == ["after it"]


def test_a_group_that_turns_private_falls_silent_for_the_others(scene: Scene) -> None:
    """N29-101."""
    client = Client(bob)
    scene.den_becomes(replace(DEN, flags=frozenset()))
    scene.follows(client)
    scene.commits(chat("open"))
    scene.den_becomes(DEN)
    scene.commits(chat("shut"))
    assert client.reads() == ["open"]


def test_a_deletion_that_tells_too_much_stays_inside(scene: Scene) -> None:
    """N29-104."""
    alices, bobs = Client(alice), Client(bob)
    for client in (alices, bobs):
        scene.follows(client, asked(kinds=[5]))
    scene.commits(unsigned(admin, 5, [IN_DEN, ["e", "e" * 64]], "sh"), quiet=True)
    assert (alices.reads(), bobs.reads()) == (["sh"], [])


@pytest.mark.proves("N46-03")
def test_a_call_for_a_signer_goes_where_it_is_asked_for_by_name(scene: Scene) -> None:
    """N46-03, N01-42: ephemeral, of no place in the log; the filter that matched decides."""
    signer, firehose, both = Client(), Client(), Client()
    by_name = asked(kinds=[24133], tag_p=[carol.pubkey])
    scene.follows(signer, by_name)
    scene.follows(firehose, asked(kinds=[24133]), asked())
    scene.follows(both, asked(), asked(kinds=[24133]), by_name)
    scene.commits(unsigned(stranger, 24133, [["p", carol.pubkey]], "connect"))
    assert (signer.reads(), firehose.reads(), both.reads()) == (["connect"], [], ["connect"])


# between stored and live -------------------------------------------------------------------------


def test_what_the_stored_answer_has_never_comes_live(scene: Scene) -> None:
    """N01-80: rows up to the cursor belong to the stored answer, later ones to the live one."""
    client = Client()
    subscription = scene.opens(client, cursor=2)
    scene.commits(note("one"), note("two"), note("three"))
    scene.fanout.release_backlog(subscription)
    assert client.reads() == ["three"]


@pytest.mark.proves("N01-75", "N01-80")
def test_live_rows_wait_for_the_stored_ones_and_come_once(scene: Scene) -> None:
    client = Client()
    subscription = scene.opens(client, asked(kinds=[1]), asked(authors=[admin.pubkey]))
    scene.commits(note("one"), unsigned(admin, 20001, [], "two, ephemeral"))
    scene.commits(note("three"))
    assert client.reads() == []
    scene.fanout.release_backlog(subscription)
    assert client.reads() == ["one", "two, ephemeral", "three"]
    scene.fanout.release_backlog(subscription)
    scene.commits(note("four"))
    assert client.reads() == ["four"]


def test_who_was_removed_meanwhile_gets_nothing_of_what_waited(scene: Scene) -> None:
    """N29-94: nothing is queued past the removal."""
    client = Client(alice)
    subscription = scene.opens(client)
    scene.commits(chat("for us"), note("for all"))
    scene.den_becomes(DEN.without_users({alice.pubkey}, removed_at=1))
    scene.fanout.release_backlog(subscription)
    assert client.reads() == ["for all"]


@pytest.mark.proves("N01-99")
def test_only_so_much_may_wait_and_a_gap_is_noted(scene: Scene) -> None:
    """STYLE rule 14: the subscription must be CLOSED, not go on with a gap."""
    client = Client()
    subscription = scene.opens(client, asked(kinds=[1]), max_backlog=2)
    scene.commits(note("one"), unsigned(admin, 7), note("two"))
    assert not subscription.has_overflowed
    scene.commits(note("three"))
    assert subscription.has_overflowed
    assert client.reads() == []


def test_what_a_client_may_not_read_takes_no_place_among_what_waits(scene: Scene) -> None:
    """What others say in private is nothing that it could notice by being closed."""
    client = Client(stranger)
    subscription = scene.opens(client, max_backlog=1)
    scene.commits(*(chat(str(number)) for number in range(5)), note("for all"))
    assert not subscription.has_overflowed
    scene.fanout.release_backlog(subscription)
    assert client.reads() == ["for all"]


def test_a_slow_reader_who_is_sent_away_costs_the_others_nothing(scene: Scene) -> None:
    """DESIGN §2 step 9: its subscriptions end in the midst of a delivery."""
    clients = [Client(), Client(max_bytes=100), Client()]
    for client in clients:
        open_ = scene.follows(client, asked(kinds=[1]))
        client.too_slow = lambda open_=open_: scene.fanout.close(open_)
    scene.commits(note("tea?"), note("more tea?"))
    assert clients[0].reads() == clients[2].reads() == ["tea?", "more tea?"]
    assert len(scene.fanout) == 2
