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
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm5hIn0"


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
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("{user: a, password: abc,token: SECRET}", "{user: a, [REDACTED]"),
        ("DB_PASSWORD=abc;API_KEY= SECRET x", "DB_[REDACTED] x"),
        ("password=p,token='a b';secret: SECRET x", "[REDACTED];[REDACTED] x"),
        ("password=p,ss;w}rd x", "[REDACTED] x"),
        (r"PASSWORD='C:\' TOKEN='a b' x", "[REDACTED] x"),
        ("password=token: SECRET x", "[REDACTED] x"),
    ],
)
def test_a_value_hides_no_name_of_the_next_secret(text: str, left: str) -> None:
    assert KNOWN_ONLY.filtered(text).text == left


@pytest.mark.proves("M-30")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        (r'"password": "ab\"SECRET", "user": "c"', '"[REDACTED], "user": "c"'),
        (r"password='ab\\\' SECRET' c", "[REDACTED] c"),
        (r'{"text": "{\"password\": \"a b\", \"c\": 1}"}', r'{"text": "{\"[REDACTED], \"c\": 1}"}'),
        ("password = '''SECRET\n'SECRET''' x", "[REDACTED] x"),
        ('password = """SE"CRET\nSECRET""" x', "[REDACTED] x"),
        ('password = """SECRET', "[REDACTED]"),
        ("password = ''; token = 1", "[REDACTED]; [REDACTED]"),
        ('{"token":"a","count":3,"password":"b"}', '{"[REDACTED],"count":3,"[REDACTED]}'),
    ],
)
def test_a_quoted_value_ends_at_its_own_quote(text: str, left: str) -> None:
    assert KNOWN_ONLY.filtered(text).text == left


@pytest.mark.proves("M-30")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("password: |\n  SECRET\n\n  SECRET\nuser: a", "[REDACTED]\nuser: a"),
        ("a:\n  token: >-\n    SECRET\n  user: a", "a:\n  [REDACTED]\n  user: a"),
        ("- secret: |2 # why\n    SECRET\n- user: a", "- [REDACTED]\n- user: a"),
        ("+  secret: |+\r\n+    SECRET\r\n+  user: a", "+  [REDACTED]\r\n+  user: a"),
        ("  1→password: |\n  2→  SECRET\n", "  1→[REDACTED]\n"),
        ("password: |\nuser: a", "[REDACTED]\nuser: a"),
        ("| token: | x |\n  y", "| [REDACTED] x |\n  y"),
        ("token: |\n  SECRET\npassword: |\n  SECRET", "[REDACTED]\n[REDACTED]"),
    ],
)
def test_a_block_of_yaml_is_taken_out_as_far_as_it_is_indented(text: str, left: str) -> None:
    assert KNOWN_ONLY.filtered(text).text == left


@pytest.mark.proves("M-30")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"a xoxb-12345-67890-{X20} b", "a [REDACTED] b"),
        ("xoxe.xoxp-1-abcdefghij", "xoxe.[REDACTED]"),
        ("xoxo-1234567890-a xoxo-anniversary", "[REDACTED] xoxo-anniversary"),
        (f"key AIza{'Sy-_9' * 7}, b", "key [REDACTED], b"),
        ("AIzaShort", "AIzaShort"),
        (f"a {JWT}.c2lnbmF0dXJl b", "a [REDACTED] b"),
        (f"a {JWT}. b", "a [REDACTED] b"),
        (f"a {JWT.replace('.', '-')}", f"a {JWT.replace('.', '-')}"),
        ("Authorization: Basic YW5uYTpwYXNz x", "[REDACTED] x"),
        ("curl -H 'authorization:basic dXNlcjpwYXNzd29yZA==' x", "curl -H '[REDACTED]' x"),
        (r"{\"Authorization\": \"Basic YW5uYTpwYXNz\"}", r"{\"[REDACTED]\"}"),
        ("Proxy-Authorization = Basic YW5uYTpwYXNz", "Proxy-[REDACTED]"),
        *[
            (text, text)
            for text in (
                "Authorization: Basic authentication",
                "Authorization: Basic Authentication is off",
                "Authorization: Basic Auth/Bearer",
                "basic JavaScript and TypeScriptCompiler",
            )
        ],
    ],
)
def test_tokens_of_services_are_taken_out(text: str, left: str) -> None:
    assert KNOWN_ONLY.filtered(text).text == left


@pytest.mark.proves("M-30")
def test_the_header_of_a_request_is_a_secret_if_it_holds_a_password() -> None:
    sent = {"Authorization": "Basic YW5uYTpwYXNz", "proxy-authorization": "none", "host": "Basic"}
    assert KNOWN_ONLY.redacted(sent) == sent | {"Authorization": "[REDACTED]"}


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
        'token="\\"',
        'token="""',
        "token='''",
        "token=",
        "token=x,token: ",
        'token=x,token="a"y',
        "token: |\n",
        " token: |\n\n\n",
        "token: |\n  x\n",
        "eyJaaaaaaaaaa.",
        "xoxb-",
        "AIza",
        "authorization: basic ",
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
