"""Where a command finds its relay and its key."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relay.client.nmem.settings import find_nmem_settings
from relay.client.settings import (
    FILE,
    Actor,
    ClientSettings,
    SnowclawSettings,
    find_settings,
    read_client_file,
)
from relay.errors import ConfigFaults, UserError
from relay.files import socket_address
from relay.memory.snowclaw.config import GroupConfig, RespondMode
from relay.memory.snowclaw.context import HistoryStyle, TrimOrder
from relay.memory.snowclaw.keys import KeyStyle
from tests.cast import alice, bob, carol, dave, owner, robot
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relay.nostr.keys import SecretKey


def write_key(path: Path, key: SecretKey) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{key.nsec}\n")
    return path


def write_file(home: Path, text: str) -> Path:
    path = home / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def found(
    tmp_path: Path,
    actor: Actor = Actor.OWNER,
    *,
    relay: str | None = None,
    key_file: Path | None = None,
    **environ: str,
) -> ClientSettings:
    return find_settings(
        actor, relay=relay, key_file=key_file, environ=environ, home=tmp_path, here=tmp_path
    )


def test_the_environment_names_the_folder_of_the_keys_that_serve_made(tmp_path: Path) -> None:
    write_key(tmp_path / "team/keys/owner.nsec", alice)
    assert found(tmp_path, ROOKERY_DATA="team").key.pubkey == alice.pubkey
    assert found(tmp_path, ROOKERY_DATA=str(tmp_path / "team")).key.pubkey == alice.pubkey


@pytest.fixture
def keys_of_serve(tmp_path: Path) -> None:
    write_key(tmp_path / "data/keys/owner.nsec", owner)
    write_key(tmp_path / "data/keys/agent.nsec", robot)


@pytest.mark.usefixtures("keys_of_serve")
def test_the_defaults_are_the_relay_and_keys_of_serve(tmp_path: Path) -> None:
    settings = found(tmp_path)
    assert settings.relay == "ws://127.0.0.1:7777"
    assert settings.key.pubkey == owner.pubkey
    assert settings.data == tmp_path / ".local/share/rookery"
    assert settings.agent_key() is None
    assert found(tmp_path, Actor.AGENT).key.pubkey == robot.pubkey


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """A relay on a data folder that says its URL once."""
    with socket.socket(socket.AF_UNIX) as control, ThreadPoolExecutor(1) as relay:
        with socket_address(folder / "control.sock") as address:
            control.bind(address)
        control.listen()
        control.settimeout(ANSWER_S)

        def answer() -> None:
            with control.accept()[0] as asking:
                asking.recv(100)
                row = b'{"url":"ws://127.0.0.1:1"}'
                asking.sendall(b'{"is":"page","sizes":[%d]}\n%s' % (len(row), row))

        relay.submit(answer)
        yield


@pytest.mark.usefixtures("keys_of_serve")
@pytest.mark.parametrize("settings", ["relay = 3", "relay = ["])
def test_broken_settings_of_a_running_relay_are_no_fault_of_a_client(
    tmp_path: Path, settings: str
) -> None:
    (tmp_path / "data" / "rookery.toml").write_text(settings)
    with running(tmp_path / "data"):
        assert found(tmp_path).relay == "ws://127.0.0.1:7777"


def test_a_relay_is_found_in_a_data_folder_with_a_long_path(tmp_path: Path) -> None:
    """Longer than the address of a socket may be."""
    folder = tmp_path / ("a-long-name-" * 10)
    write_key(folder / "keys/owner.nsec", owner)
    (folder / "rookery.toml").write_text("")
    with running(folder):
        assert found(tmp_path, ROOKERY_DATA=str(folder)).relay == "ws://127.0.0.1:1"


@pytest.mark.usefixtures("keys_of_serve")
def test_key_and_relay_of_the_current_folder_are_its_user_s_own(
    tmp_path: Path, give_away: Callable[[Path], None]
) -> None:
    """In a folder where others may write, somebody else can be the first to make `data`."""
    key_file = tmp_path / "data/keys/owner.nsec"
    for path in (tmp_path / "data", key_file):
        give_away(path)
    assert found(tmp_path, ROOKERY_KEY=alice.nsec).relay == "ws://127.0.0.1:7777"
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(tmp_path / "data" / "control.sock"))
    with pytest.raises(UserError, match=r"data belongs to another user \(.*--relay"):
        found(tmp_path)
    with pytest.raises(UserError, match=r"owner.nsec belongs to another user \(.*--key-file"):
        found(tmp_path, relay="ws://127.0.0.1:1")
    assert found(tmp_path, relay="ws://127.0.0.1:1", ROOKERY_KEY=alice.nsec).key.pubkey


@pytest.mark.parametrize("name", [FILE.name, "", ".."])
def test_settings_that_another_user_may_have_made_are_not_used(
    tmp_path: Path, give_away: Callable[[Path], None], name: str
) -> None:
    """They name the relay that memory is sent to, and files that are written."""
    file = write_file(tmp_path, 'relay = "ws://127.0.0.1:1"')
    give_away(Path(os.path.normpath(file.parent / name)))
    with pytest.raises(ConfigFaults, match=r"client\.toml: not used, .* belongs to another user"):
        found(tmp_path, ROOKERY_KEY=alice.nsec)
    with pytest.raises(ConfigFaults):
        find_nmem_settings(tmp_path)


def test_a_cache_in_a_folder_of_another_user_is_not_used(
    tmp_path: Path, give_away: Callable[[Path], None]
) -> None:
    data = tmp_path / ".local/share/rookery"
    data.mkdir(parents=True)
    give_away(data)
    with pytest.raises(ConfigFaults, match=r"nmem\.db: not used, .* belongs to another user"):
        find_nmem_settings(tmp_path)


@pytest.mark.usefixtures("keys_of_serve")
def test_a_link_to_the_socket_of_another_relay_chooses_no_relay(tmp_path: Path) -> None:
    """A cloned repository may have it, and settings that name a relay of its author's."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "rookery.toml").write_text("")
    (tmp_path / "data" / "control.sock").symlink_to("../mine/control.sock")
    (tmp_path / "data" / "rookery.toml").write_text('[relay]\nurl = "wss://their.example"\n')
    with running(mine):
        with pytest.raises(UserError, match=r"control.sock is a symbolic link; .*--relay"):
            found(tmp_path)
        (tmp_path / "data").rename(tmp_path / "theirs")
        (tmp_path / "data").symlink_to("mine")
        assert found(tmp_path, ROOKERY_KEY=alice.nsec).relay == "ws://127.0.0.1:1"


def test_without_a_chosen_folder_no_key_is_read_from_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name agent_key_file in"):
        find_settings(Actor.AGENT, relay=None, key_file=None, environ={}, home=tmp_path, here=None)


@pytest.mark.usefixtures("keys_of_serve")
def test_options_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    write_key(tmp_path / "alice.nsec", alice)
    write_file(tmp_path, f'relay = "wss://file.example"\nkey_file = "{tmp_path}/alice.nsec"\n')
    settings = found(tmp_path)
    assert (settings.relay, settings.key.pubkey) == ("wss://file.example", alice.pubkey)

    settings = found(tmp_path, ROOKERY_RELAY="wss://env.example", ROOKERY_KEY=bob.hex)
    assert (settings.relay, settings.key.pubkey) == ("wss://env.example", bob.pubkey)

    settings = found(
        tmp_path,
        relay="wss://option.example",
        key_file=write_key(tmp_path / "carol.nsec", carol),
        ROOKERY_RELAY="wss://env.example",
        ROOKERY_KEY=bob.hex,
    )
    assert (settings.relay, settings.key.pubkey) == ("wss://option.example", carol.pubkey)


@pytest.mark.usefixtures("keys_of_serve")
def test_an_empty_variable_is_ignored(tmp_path: Path) -> None:
    settings = found(tmp_path, ROOKERY_RELAY="", ROOKERY_KEY="")
    assert (settings.relay, settings.key.pubkey) == ("ws://127.0.0.1:7777", owner.pubkey)


def test_paths_in_the_file_are_relative_to_home_or_the_file(tmp_path: Path) -> None:
    write_key(tmp_path / "keys/dave", dave)
    write_key(tmp_path / ".config/rookery/bot", robot)
    write_file(
        tmp_path, 'key_file = "~/keys/dave"\nagent_key_file = "bot"\ndata = "/var/lib/agent"\n'
    )
    settings = found(tmp_path)
    assert settings.key.pubkey == dave.pubkey
    assert settings.data.as_posix() == "/var/lib/agent"
    agent = settings.agent_key()
    assert agent is not None
    assert agent.pubkey == robot.pubkey


def test_an_agent_command_falls_back_to_the_agents_key_file(
    tmp_path: Path,
) -> None:
    write_key(tmp_path / "bot", robot)
    write_file(tmp_path, 'agent_key_file = "~/bot"\n')
    assert found(tmp_path, Actor.AGENT).key.pubkey == robot.pubkey


def test_with_both_key_files_agent_commands_use_the_agents_and_user_commands_the_owners(
    tmp_path: Path,
) -> None:
    write_key(tmp_path / "me", owner)
    write_key(tmp_path / "bot", robot)
    write_file(tmp_path, 'key_file = "~/me"\nagent_key_file = "~/bot"\n')
    signs = {actor: found(tmp_path, actor).key.pubkey for actor in Actor}
    assert signs == {Actor.OWNER: owner.pubkey, Actor.AGENT: robot.pubkey, Actor.USER: owner.pubkey}


def test_tables_of_the_memory_systems_are_kept_unparsed(tmp_path: Path) -> None:
    write_file(tmp_path, '[snowclaw]\nrespond_mode = "all"\n[nmem]\n[anamnesis]\n')
    assert dict(read_client_file(tmp_path).tables) == {
        "snowclaw": {"respond_mode": "all"},
        "nmem": {},
        "anamnesis": {},
    }


def test_an_agent_s_own_settings_are_read(tmp_path: Path) -> None:
    assert read_client_file(tmp_path).snowclaw == SnowclawSettings(
        GroupConfig(), KeyStyle.HEX, TrimOrder.NOTES_FIRST, HistoryStyle.HEADER
    )
    write_file(
        tmp_path,
        '[snowclaw]\nrespond_mode = "Listen"\ncontext_history = 5\nkey_style = "npub"\n'
        'trim_order = "history_first"\nhistory_style = "plain"\n',
    )
    assert read_client_file(tmp_path).snowclaw == SnowclawSettings(
        GroupConfig(RespondMode.NONE, 5),
        KeyStyle.NPUB,
        TrimOrder.HISTORY_FIRST,
        HistoryStyle.PLAIN,
    )


def test_every_fault_of_the_snowclaw_table_is_reported(tmp_path: Path) -> None:
    path = write_file(
        tmp_path,
        '[snowclaw]\nrespond_mode = "loud"\ncontext_history = 1001\nkey_style = 5\n'
        'trim_order = "last"\nhistory_style = "Plain"\nhistory = 3\n',
    )
    with pytest.raises(ConfigFaults) as faults:
        read_client_file(tmp_path)
    assert str(faults.value).splitlines()[-6:] == [
        f"{path}:2: [snowclaw] respond_mode must be all, mention, owner or none",
        f"{path}:3: [snowclaw] context_history must be an integer from 0 to 1000",
        f"{path}:4: [snowclaw] key_style: must be hex or npub",
        f"{path}:5: [snowclaw] trim_order: must be notes_first or history_first",
        f"{path}:6: [snowclaw] history_style: must be header or plain",
        f"{path}:7: unknown key [snowclaw] history; did you mean history_style?",
    ]


def test_every_fault_of_the_file_is_reported_with_line_and_suggestion(
    tmp_path: Path,
) -> None:
    path = write_file(
        tmp_path,
        '# mine\nrelai = "ws://x"\ndata = 5\n\nrelay = "http://x"\n[snowclow]\nrelay = 1\n'
        'zzz = "y"\n[[nmem]]\n',
    )
    with pytest.raises(ConfigFaults) as faults:
        read_client_file(tmp_path)
    assert str(faults.value).splitlines() == [
        f"{path}:2: unknown key relai; did you mean relay?",
        f"{path}:3: data: must be a string",
        f"{path}:5: relay: must be a URL that begins with ws:// or wss://",
        f"{path}:6: unknown key [snowclow]; did you mean snowclaw?",
        f"{path}:9: nmem: must be a table, [nmem]",
    ]


def test_a_toml_syntax_error_is_reported_with_its_line(tmp_path: Path) -> None:
    path = write_file(tmp_path, 'relay = "ws://x"\nkey_file =\n')
    with pytest.raises(ConfigFaults) as faults:
        read_client_file(tmp_path)
    assert str(faults.value).startswith(f"{path}:2: ")


def test_without_a_key_the_error_says_how_to_provide_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--key-file FILE or set ROOKERY_KEY"):
        found(tmp_path)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no key file .*nowhere"):
        found(tmp_path, key_file=tmp_path / "nowhere")
    write_file(tmp_path, 'key_file = "~/nobody"\n')
    named = "nobody, which key_file in ~/.config/rookery/client.toml names; `rookery keygen`"
    with pytest.raises(UserError, match=named):
        found(tmp_path)


def test_an_invalid_secret_is_never_quoted(tmp_path: Path) -> None:
    secret = alice.nsec[:-1] + "1"
    with pytest.raises(UserError) as from_environment:
        found(tmp_path, ROOKERY_KEY=secret)
    path = tmp_path / "broken"
    path.write_text(secret)
    with pytest.raises(UserError) as from_file:
        found(tmp_path, key_file=path)
    path.write_bytes(b"\xff\xfe" + secret.encode())
    with pytest.raises(UserError) as from_bytes:
        found(tmp_path, key_file=path)
    for error in (from_environment, from_file, from_bytes):
        assert secret not in str(error.value)
    write_file(tmp_path, f'key = "{secret}"\nkey_file = 5\n')
    with pytest.raises(ConfigFaults) as in_file:
        found(tmp_path)
    assert secret not in str(in_file.value)
    assert "did you mean key_file?" in str(in_file.value)


@pytest.mark.parametrize(
    "name", [alice.nsec, alice.nsec.upper(), alice.nsec[:-1], "5e" * 32, "5E" * 32]
)
@pytest.mark.parametrize("setting", ["key_file", "agent_key_file"])
def test_a_key_in_place_of_its_file_is_not_quoted(tmp_path: Path, name: str, setting: str) -> None:
    """A hook wrote it to its log."""
    write_file(tmp_path, f'{setting} = "{name}"\n')
    with pytest.raises(UserError, match=setting) as in_file:
        found(tmp_path, Actor.AGENT)
    with pytest.raises(UserError) as as_option:
        found(tmp_path, key_file=Path(name))
    for error in (in_file, as_option):
        assert name[8:] not in str(error.value)


@pytest.mark.parametrize(
    "url", ["http://relay.example", "relay.example", "ws://u:p@x", f"ws://{'a' * 64}.example"]
)
def test_a_relay_url_that_is_no_websocket_url_is_a_usage_error(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match=r"--relay: .* is no relay URL") as error:
        found(tmp_path, relay=url, ROOKERY_KEY=alice.hex)
    assert error.value.code == 2
    with pytest.raises(UserError, match="ROOKERY_RELAY: "):
        found(tmp_path, ROOKERY_RELAY=url, ROOKERY_KEY=alice.hex)


@pytest.mark.parametrize(
    ("url", "meant"),
    [("http://127.0.0.1:7777/", "ws://127.0.0.1:7777/"), ("HTTPS://a.example", "wss://a.example")],
)
def test_the_address_of_a_web_page_is_refused_with_the_relays(
    tmp_path: Path, url: str, meant: str
) -> None:
    with pytest.raises(UserError) as error:
        found(tmp_path, relay=url, ROOKERY_KEY=alice.hex)
    assert str(error.value) == f"--relay: {url!r} is no relay URL; did you mean {meant}?"
