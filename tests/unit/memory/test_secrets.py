"""relay/memory/secrets.py: redaction."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.memory.secrets import KEY_BLOCK, SecretFilter, Sensitivity, entropy
from tests.harness.patience import here

NORMAL = SecretFilter()
KNOWN_ONLY = SecretFilter(Sensitivity.RELAXED)
CHANCE = "q8Zr4TnX2vLk9WsB7yHd3Mf"
X82, X36, X20 = "a" * 82, "a" * 36, "a" * 20


@pytest.mark.proves("M-30")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"AKIA{'Z9' * 8}.", "[REDACTED]."),
        ("AKIAshort", "AKIAshort"),
        ("aws_secret_access_key = abc", "[REDACTED]"),
        ("AWS_SECRET_ACCESS_KEY=abc", "[REDACTED]"),
        (f"x github_pat_{X82} y", "x [REDACTED] y"),
        (f"ghp_{X36} gho_{X36} ghs_{X36}", "[REDACTED] [REDACTED] [REDACTED]"),
        (f"ghx_{X36}", f"ghx_{X36}"),
        (f"sk-{X20} sk-ant-{X20}", "[REDACTED] [REDACTED]"),
        (f"sk-{X20[1:]}", f"sk-{X20[1:]}"),
        (f"task-{X20}", f"task-{X20}"),
        (f"BEARER  {X20} x", "[REDACTED] x"),
        (f"bearer {X20[1:]}", f"bearer {X20[1:]}"),
        *[
            (f"a -----BEGIN {name} PRIVATE KEY-----\nx", "a [REDACTED]")
            for name in ("RSA", "EC", "DSA", "OPENSSH")
        ],
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----", "[REDACTED]"),
        ("-----BEGIN PUBLIC KEY-----", "-----BEGIN PUBLIC KEY-----"),
        *[
            (f"{scheme}://u:p@h/x", "[REDACTED]h/x")
            for scheme in (
                "postgres",
                "postgresql",
                "mysql",
                "mongodb",
                "mongodb+srv",
                "redis",
                "amqp",
                "http",
                "https",
                "HTTPS",
            )
        ],
        ("https://u@h/x https://h:80/x ftp://u:p@h", "https://u@h/x https://h:80/x ftp://u:p@h"),
        *[
            (f"my {word.upper()}:x y", "my [REDACTED] y")
            for word in ("password", "passwd", "secret", "token", "api_key", "apikey")
        ],
        ('{"token": "a b", "user": "c"}', '{"[REDACTED], "user": "c"}'),
        ("password='a b' c", "[REDACTED] c"),
        ("the secret of tea", "the secret of tea"),
        ("password=", "password="),
    ],
)
def test_known_forms_are_taken_out(text: str, left: str) -> None:
    assert KNOWN_ONLY.filtered(text) == (left, left != text)
    assert NORMAL.filtered(text) == (left, left != text)


@pytest.mark.proves("M-30")
@pytest.mark.parametrize("known", [KNOWN_ONLY, NORMAL])
@pytest.mark.parametrize("eol", ["\n", "\r\n", "\\n", "\n  12→", "\n+"])
@pytest.mark.parametrize("kind", ["PRIVATE KEY", "RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
def test_a_private_key_is_taken_out_from_its_head_to_its_end(
    known: SecretFilter, eol: str, kind: str
) -> None:
    body = eol.join(["Proc-Type: 4,ENCRYPTED", "", "/9j" + "a" * 61, "MIIEpAIBAAKCAQEA7bq0", "k="])
    key = eol.join([f"-----BEGIN {kind}-----", body, f"-----END {kind}-----"])
    assert known.filtered(f"a {key} b {key}, c").text == "a [REDACTED] b [REDACTED], c"
    assert known.filtered(f"a {key[:150]}").text == "a [REDACTED]"
    assert known.redacted({"lines": ["x", *key.splitlines(), "y"], "z": [key, 1]}) == {
        "lines": ["x", "[REDACTED]", "y"],
        "z": ["[REDACTED]", 1],
    }


@pytest.mark.proves("M-30")
def test_a_private_key_without_an_end_takes_no_more_than_one_may_have() -> None:
    head, words = "-----BEGIN PRIVATE KEY-----", "tea and cake " * 10_000
    left = KNOWN_ONLY.filtered(f"a {head}{words} c").text
    assert left.startswith("a [REDACTED]")
    assert len(left) == len(f"a [REDACTED]{words} c") - KEY_BLOCK


def test_each_byte_is_looked_at_for_one_private_key_only() -> None:
    """Heads without an end do not each search what follows them."""
    large = "-----BEGIN PRIVATE KEY-----" * 40_000
    assert KNOWN_ONLY.filtered(large).text.count("[REDACTED]") <= len(large) // KEY_BLOCK + 1


@pytest.mark.proves("M-30")
@pytest.mark.parametrize("sign", list(" \t\n\"'()[]{}`,;"))
def test_tokens_end_at_spaces_quotes_and_brackets(sign: str) -> None:
    assert NORMAL.filtered(f"a{sign}{CHANCE}{sign}b").text == f"a{sign}[REDACTED]{sign}b"
    assert NORMAL.filtered(sign.join(CHANCE)).is_redacted is False


@pytest.mark.proves("M-30")
@pytest.mark.parametrize("start", ["/", "./", "~/", "http://", "https://", "file://"])
def test_paths_and_addresses_are_no_secrets(start: str) -> None:
    assert NORMAL.filtered(start + CHANCE).is_redacted is False


@pytest.mark.proves("M-30")
def test_a_token_is_measured_in_bytes() -> None:
    assert NORMAL.filtered(CHANCE[:19]).is_redacted is False
    assert NORMAL.filtered(CHANCE[:20]).text == "[REDACTED]"
    assert NORMAL.filtered("äöüßéèêëàâçñ").text == "äöüßéèêëàâçñ"  # 24 bytes, half of them alike
    assert entropy("äö".encode()) == 1.5


@pytest.mark.proves("M-30")
def test_entropy_at_the_threshold_is_a_secret() -> None:
    assert entropy(b"abcdefghijklmnop") == 4.0
    assert NORMAL.filtered("abcdefghijklmnop" * 2).is_redacted
    assert NORMAL.filtered("abcdefghijklmno" * 2).is_redacted is False


@pytest.mark.proves("M-30")
def test_secrets_that_overlap_are_one() -> None:
    assert NORMAL.filtered(f"my token: ghp_{X36}!! x").text == "my [REDACTED] x"
    assert NORMAL.filtered(f"postgres://u:ghp_{X36}@h/x").text == "[REDACTED]h/x"
    assert NORMAL.filtered(f"bearer token:{X20} x").text == "bearer [REDACTED] x"
    assert NORMAL.filtered(f"ghp_{X36}\nghp_{X36}").text == "[REDACTED]\n[REDACTED]"
    assert NORMAL.filtered(f"AKIA{'Z9' * 8}" * 2).text == "[REDACTED][REDACTED]"


@pytest.mark.proves("M-30")
def test_what_stands_beside_a_secret_is_judged_alone() -> None:
    assert NORMAL.filtered(f"KEY=AKIA{'Z9' * 8}").text == "KEY=[REDACTED]"
    assert NORMAL.filtered(f"token=x {CHANCE}{'!' * 3}").text == "[REDACTED] [REDACTED]"


@pytest.mark.proves("M-30")
def test_an_admins_own_patterns_are_taken_out_too() -> None:
    own = SecretFilter(patterns=[r"ACME-\d+", r"x*"])
    assert own.filtered("see ACME-12 xx").text == "see [REDACTED] [REDACTED]"
    assert own.filtered("nothing") == ("nothing", False)


@pytest.mark.proves("M-30")
@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "\ud800", r"(a)\1"])
def test_a_pattern_that_cannot_be_used_is_named(pattern: str) -> None:
    with pytest.raises(Invalid) as refused:
        SecretFilter(patterns=["fine", pattern])
    assert refused.value.text == f"pattern {pattern!r} cannot be used"


@pytest.mark.proves("M-30")
def test_a_cut_text_holds_no_part_of_a_secret() -> None:
    assert NORMAL.filtered(f"ab {CHANCE}", 10) == ("ab [REDACT", True)
    assert NORMAL.filtered(f"ab {CHANCE}", 3) == ("ab ", False)
    assert NORMAL.filtered("äöü", 2) == ("äö", False)
    assert NORMAL.filtered(f"http://u:{'p' * 3000}@h", 20).text == "[REDACTED]"


@given(st.text(), st.integers(0, 30))
def test_any_text_comes_out_as_text_and_no_longer_than_asked(text: str, limit: int) -> None:
    whole, part = NORMAL.filtered(text), NORMAL.filtered(text, limit)
    assert len(part.text) <= limit
    assert part.text.encode().decode() == part.text
    if not whole.is_redacted:
        assert whole.text == text
        assert part.text == text[:limit]


@pytest.mark.proves("M-30")
def test_what_its_name_calls_a_secret_is_one() -> None:
    said = {
        "env": {"DB_PASSWORD": "hunter2", "HOME": "/home/ada", "retries": 3},
        "token": "t0p",
        "tokens_used": "12",
        "list": [{"api_key": "x"}, "password=abc", None],
    }
    assert NORMAL.redacted(said) == {
        "env": {"DB_PASSWORD": "[REDACTED]", "HOME": "/home/ada", "retries": 3},
        "token": "[REDACTED]",
        "tokens_used": "12",
        "list": [{"api_key": "[REDACTED]"}, "[REDACTED]", None],
    }


def test_half_of_a_character_becomes_a_question_mark() -> None:
    assert NORMAL.filtered("a\ud800b").text == "a?b"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "http://a:",
        "http://a:b@",
        "token='",
        "token   ",
        "AKIA",
        "sk-",
        "bearer ",
        "'\"",
        f"{CHANCE} ",
        "-----BEGIN RSA PRIVATE ",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY----- -----END ",
        "password",
        "aws secret access key ",
        'token="',
        "a" * 19 + " ",
        "x",
    ],
)
def test_no_text_takes_more_than_its_length_is_worth(text: str) -> None:
    """A tenth of a second for 1 MB is usual; a quarter where all of it is secrets."""
    large = text * (1_000_000 // len(text))
    start = perf_counter()
    NORMAL.filtered(large)
    assert perf_counter() - start < here(5)
