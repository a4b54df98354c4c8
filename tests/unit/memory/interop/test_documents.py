"""Files of other tools as notes and records: one case per shape, then what is wrong with a file."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.memory.check_options import CheckOptions
from relay.memory.interop import documents
from relay.memory.interop.documents import Reader, form_of_markdown, json_in, markdown_in
from relay.memory.interop.records import Fault, Form, Item, Note, Recorded, Sifter, draft_of
from relay.memory.junk import Sieve
from relay.memory.nmem import checks as nmem_checks
from relay.memory.nmem.records import (
    Observation,
    Prompt,
    Session,
    Source,
    hash_in,
    prompt_draft,
)
from relay.memory.secrets import SecretFilter
from tests import cast
from tests.unit.memory.interop.samples import (
    BASIC_MEMORY,
    BREWED,
    CLAUDE_MEM,
    MEM0,
    MEM0_MARKDOWN,
    NOMEN,
    NOMEN_LIST,
    as_json,
)

if TYPE_CHECKING:
    from relay.memory.interop.records import Parsed

READER = Reader({cast.robot.pubkey}, SecretFilter())
SECRET = "sk-ant-" + "a1" * 20


def read(text: str, path: str = "notes/a.md", form: Form | None = None) -> list[Parsed]:
    return list(markdown_in(text, path, form or form_of_markdown(text), READER))


def read_json(value: object, form: Form | None = None) -> tuple[Form, list[Parsed]]:
    data = value if isinstance(value, bytes) else as_json(value)
    document = json_in(data, "x.json", form, READER)
    return document.form, list(document.records)


def only_note(parsed: list[Parsed]) -> tuple[str, str, str, int | None]:
    """(category, key, text, time)."""
    (item,) = parsed
    assert isinstance(item, Item), item
    assert isinstance(item.record, Note)
    memory = item.record.memory
    return memory.category, memory.key, memory.text, item.record.at


def fault(parsed: list[Parsed]) -> str:
    (found,) = parsed
    assert isinstance(found, Fault), found
    return f"{found.where}: {found.why}"


# -- markdown -------------------------------------------------------------------------------------


def test_a_note_of_basic_memory_keeps_its_permalink_its_text_and_its_time() -> None:
    assert form_of_markdown(BASIC_MEMORY) is Form.BASIC_MEMORY
    expected = ("basic-memory", "coffee/brewing-methods", BASIC_MEMORY, BREWED)
    assert only_note(read(BASIC_MEMORY)) == expected
    assert only_note(read(BASIC_MEMORY, "moved/to/b.md")) == expected


def test_a_plain_note_is_named_by_its_path_below_the_folder() -> None:
    assert only_note(read("just text\n")) == ("markdown", "notes/a", "just text\n", None)
    dated = "---\ndate: 2026-02-18\n---\nA day.\n"
    assert only_note(read(dated)) == ("markdown", "notes/a", dated, 1_771_372_800)


def test_two_spellings_of_one_file_name_are_one_key() -> None:
    keys = {only_note(read("x", path))[1] for path in ("cafe\u0301.md", "caf\xe9.md")}
    assert keys == {"caf\xe9"}


def test_a_file_of_nomen_and_its_list_give_the_same_key() -> None:
    category, key, text, at = only_note(read(NOMEN))
    assert (category, key, text) == ("nomen", "group/techteam/deploy-process", NOMEN)
    assert at == 1_773_943_200
    form, parsed = read_json(NOMEN_LIST)
    assert form is Form.NOMEN
    category, listed, text, _ = only_note(parsed)
    assert (category, listed) == ("nomen", key)
    assert text.endswith("---\nWe deploy on Tuesdays, never on Fridays.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("---\nmodified: yesterday\n---\nx", "notes/a.md:2: modified must be an ISO 8601 date or"),
        ("---\npermalink: 'a\x1b[2J'\n---\nx", "notes/a.md:2: its id must be 1 to 512 printable"),
        ("---\n---\n  \n", None),
        ("", "notes/a.md:1: it has no text"),
        ("one\ntwo\0", "notes/a.md:1: line 2: a NUL byte"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, said: str | None) -> None:
    parsed = read(text)
    if said is None:
        assert isinstance(parsed[0], Item)
    else:
        assert fault(parsed).startswith(said)


def test_a_file_without_d_tag_is_no_memory_of_nomen() -> None:
    parsed = read("x", form=Form.NOMEN)
    assert fault(parsed) == "notes/a.md:1: d_tag: missing from the front matter"


@pytest.mark.parametrize(
    "block",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\npermalink: safe",
        "permalink: safe\n" + "deep:\n" + "".join(f"{' ' * n}k{n}:\n" for n in range(1, 200)),
        "permalink: safe\nlist:\n" + "- x\n" * 400,
        "!!python/object/apply:os.system ['x']\npermalink: safe",
        "permalink: safe\npermalink: other",
        'permalink: "safe"   \nx: \'',
    ],
    ids=["aliases", "nesting", "long list", "tags", "twice", "quotes"],
)
def test_hostile_front_matter_is_text(block: str) -> None:
    _, key, text, _ = only_note(read(f"---\n{block}\n---\nbody"))
    assert (key, text) == ("safe", f"---\n{block}\n---\nbody")


@pytest.mark.parametrize(
    "head", ["---\n" + "x: y\n" * 600, "---\nx: " + "y" * 70_000 + "\n", "--- x"]
)
def test_front_matter_over_the_limits_or_without_an_end_is_none(head: str) -> None:
    text = f"{head}\npermalink: p\n---\nbody"
    assert only_note(read(text))[:2] == ("markdown", "notes/a")


# -- mem0 -----------------------------------------------------------------------------------------


def test_memories_of_mem0_keep_their_ids_users_and_times() -> None:
    form, parsed = read_json(MEM0)
    assert form is Form.MEM0
    first, second = (only_note([each]) for each in parsed)
    text = '---\nuser_id: alice\nmetadata: {"category":"hobbies"}\n---\n'
    expected = f"{text}Likes to play cricket on weekends"
    assert first == ("mem0", "892db2ae-06d9-49e5-8b3e-585ef9b85b8e", expected, 1_771_398_000)
    assert second[2] == '---\nuser_id: alice\ncategories: ["food","health"]\n---\nIs vegetarian'
    assert second[3] == 1_771_484_400


def test_a_list_and_lines_are_read_as_well() -> None:
    rows = MEM0["results"]
    lines = b"\n".join(json.dumps(row).encode() for row in rows)
    assert read_json(rows)[1] != []
    places = [item.where for item in read_json(lines)[1]]
    assert places == ["x.json:1", "x.json:2"]


def test_the_markdown_of_mem0s_plugin_is_several_memories() -> None:
    assert form_of_markdown(MEM0_MARKDOWN) is Form.MEM0
    first, second = (only_note([each]) for each in read(MEM0_MARKDOWN))
    assert (first[1], second[1]) == ("abc123", "def456")
    assert first[2].endswith(
        "---\nTests run with `make test`.\n\n---\n\nA rule belongs to the text."
    )
    assert second[2] == "The port is 7777."


def test_a_file_of_too_many_values_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 MiB of them would take seven gigabytes of memory."""
    monkeypatch.setattr(documents, "_MOST_VALUES", 1000)
    for data in (b'["a"' + b',"a"' * 1000 + b"]", b"[" * 1001, b"{}\n" * 1001):
        with pytest.raises(Invalid, match=r"x.json: over 1,000 values: import it in parts"):
            json_in(data, "x.json", None, READER)


def test_a_page_of_several_says_so() -> None:
    document = json_in(as_json({"next": "page 2", **MEM0}), "x.json", None, READER)
    assert "one page of several" in document.remark


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "a"}, "x.json: results[1]: memory must be a string"),
        ({"id": 3, "memory": "x"}, "x.json: results[1]: id must be a string"),
        ({"id": "a", "memory": " "}, "x.json: results[1]: it has no text"),
        ({"id": "a", "memory": "x", "created_at": "soon"}, "x.json: results[1]: created_at must"),
        (["x"], "x.json: results[1]: must be a JSON object"),
    ],
)
def test_one_bad_row_does_not_stop_the_others(row: object, said: str) -> None:
    rows = MEM0["results"]
    _, parsed = read_json({"results": [rows[0], row, rows[1]]})
    assert [isinstance(each, Item) for each in parsed] == [True, False, True]
    assert fault([parsed[1]]).startswith(said)


def test_metadata_that_is_nested_too_deeply_is_refused() -> None:
    deep: object = "x"
    for _ in range(300):
        deep = [deep]
    _, parsed = read_json({"results": [{"id": "a", "memory": "x", "metadata": {"deep": deep}}]})
    assert "nested too deeply" in fault(parsed)


# -- claude-mem -----------------------------------------------------------------------------------


def records_of_claude_mem(value: dict[str, Any] = CLAUDE_MEM) -> list[Any]:
    form, parsed = read_json(value)
    assert form is Form.CLAUDE_MEM
    items = [each for each in parsed if isinstance(each, Item)]
    assert len(items) == len(parsed)
    found = []
    for item in items:
        assert isinstance(item.record, Recorded)
        found.append(item.record)
    return found


SESSION = "5c1f0e8a-6f2b-4b1c-9d0e-000000000001"


def test_an_export_of_claude_mem_becomes_sessions_prompts_and_observations() -> None:
    prompt, bugfix, old, earlier, session, other = records_of_claude_mem()
    assert prompt.record == Prompt(SESSION, 1_771_405_201, Source.USER, "fix the kettle")
    made = bugfix.record
    assert isinstance(made, Observation)
    assert (made.session, made.timestamp, made.obs_type) == (SESSION, 1_771_405_290, "bugfix")
    assert made.content == (
        "Kettle no longer leaks\nThe seal was worn\nReplaced the seal and ran the tests.\n"
        "- The seal is made of silicone\n- It lasts a year"
    )
    assert made.file_path == "src/lid.py"
    assert made.metadata == {
        "concepts": ["problem-solution"],
        "files_read": ["src/seal.py"],
        "files_modified": ["src/lid.py"],
    }
    assert made.prompt == hash_in(prompt_draft(prompt.record).d)
    assert (old.record.session, old.record.content) == ("mem-2", "The old form has text alone")
    assert (earlier.record.obs_type, earlier.record.session) == ("session_summary", SESSION)
    assert earlier.record.content.startswith("request: Find the leak\ninvestigated: The seal")
    last = session.record
    assert isinstance(last, Session)
    assert (last.id, last.project, last.started_at) == (SESSION, "kettle", 1_771_405_200)
    assert (last.ended_at, last.signature) == (
        1_771_405_320,
        (("bugfix", 1), ("session_summary", 1)),
    )
    assert last.summary is not None
    assert last.summary.fields() == {
        "intent": "Fix the kettle",
        "learned": ["Seals last a year"],
        "completed": ["Replaced the seal"],
        "next_steps": ["Descale in May"],
        "files_read": ["src/seal.py"],
        "files_edited": ["src/lid.py"],
        "notes": {"investigated": "The seal and the lid"},
    }
    assert (other.record.id, other.project) == ("mem-2", "teapot")


def test_the_last_summary_is_the_sessions_wherever_it_stands() -> None:
    turned = {**CLAUDE_MEM, "summaries": CLAUDE_MEM["summaries"][::-1]}
    assert records_of_claude_mem(turned) == records_of_claude_mem()


def test_every_record_of_claude_mem_is_one_that_the_relay_takes() -> None:
    for record in records_of_claude_mem():
        draft = draft_of(record, 0)
        assert nmem_checks.check(cast.robot.sign(*draft_args(draft)), CheckOptions()) is None


def draft_args(draft: Any) -> tuple[int, list[list[str]], str, int]:
    return draft.kind, draft.tags, draft.content, draft.created_at


def test_the_columns_of_older_versions_are_read_too() -> None:
    rows = json.loads(json.dumps(CLAUDE_MEM))
    for table in rows.values():
        for row in table if isinstance(table, list) else ():
            for new, old in (
                ("content_session_id", "claude_session_id"),
                ("memory_session_id", "sdk_session_id"),
            ):
                if new in row:
                    row[old] = row.pop(new)
    assert records_of_claude_mem(rows) == records_of_claude_mem()


def test_secrets_of_claude_mem_are_redacted_and_told() -> None:
    rows = json.loads(json.dumps(CLAUDE_MEM).replace("Replaced the seal and", f"Used {SECRET} and"))
    _, parsed = read_json(rows)
    told = [item.changed for item in parsed if isinstance(item, Item) and item.changed]
    assert told == [("what looks like a secret: [REDACTED] stands in its place",)]
    assert SECRET not in str([item.record for item in parsed if isinstance(item, Item)])


@pytest.mark.parametrize(
    ("table", "field", "value", "said"),
    [
        ("observations", "memory_session_id", "", "memory_session_id must be 1 to 200 printable"),
        ("observations", "type", 7, "type must be a string"),
        ("observations", "created_at_epoch", "soon", "created_at must be a time"),
        ("observations", "created_at_epoch", -1, "created_at_epoch is no time"),
        ("prompts", "prompt_text", None, "prompt_text must be a string"),
        ("sessions", "content_session_id", "a\nb", "content_session_id must be 1 to 200"),
    ],
)
def test_a_bad_row_names_its_table_id_and_field(
    table: str, field: str, value: object, said: str
) -> None:
    rows = json.loads(json.dumps(CLAUDE_MEM))
    rows[table][0][field] = value
    _, parsed = read_json(rows)
    faults = [each for each in parsed if isinstance(each, Fault)]
    assert fault(list(faults)).startswith(f"x.json: {table} id {rows[table][0]['id']}: {said}")
    assert len(parsed) >= 5


# -- what a document is ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "x.json:1: is not JSON"),
        (b"[" * 2_000 + b"]" * 2_000, "x.json:1: is not JSON"),
        (b"\xff\xfe", "x.json:1: is not JSON"),
        (b'"text"', "x.json: is no export of a known tool"),
        (b"{}", "x.json: is no export of a known tool"),
        (b'{"results": 3}', "x.json: is no export of a known tool"),
        (b'[{"name": "x"}]', "x.json: is no export of a known tool"),
    ],
)
def test_what_is_no_export_is_said(data: bytes, said: str) -> None:
    with pytest.raises(Invalid) as raised:
        read_json(data)
    assert raised.value.text.startswith(said)


def test_a_document_of_another_tool_than_named_is_refused() -> None:
    with pytest.raises(Invalid, match="is no export of claude-mem"):
        read_json(MEM0, Form.CLAUDE_MEM)


def test_a_line_that_is_no_json_does_not_stop_the_others() -> None:
    good = json.dumps(MEM0["results"][0]).encode()
    _, parsed = read_json(b"\n".join([good, b"{", b"", good]))
    assert [isinstance(each, Item) for each in parsed] == [True, False, True]
    assert fault([parsed[1]]).startswith("x.json:2: is not JSON")


# -- junk -----------------------------------------------------------------------------------------


def sifted(*texts: str, stored: tuple[str, ...] = ()) -> list[Parsed]:
    def item(index: int, text: str) -> Item:
        (found,) = read(text, f"{index}.md")
        assert isinstance(found, Item)
        return found

    known = [item(100 + index, text).record for index, text in enumerate(stored)]
    sifter = Sifter(Sieve(), [note.memory for note in known if isinstance(note, Note)])
    return [sifter.sifted(item(index, text)) for index, text in enumerate(texts)]


def test_secrets_are_taken_out_of_notes_and_told() -> None:
    (item,) = sifted(f"One.\nThe key is {SECRET} today.")
    assert isinstance(item, Item)
    assert only_note([item])[2] == "One.\nThe key is [REDACTED] today."
    told = "line 2 of the text: what looks like a secret: [REDACTED] stands in its place"
    assert item.changed == (told,)


def test_a_near_duplicate_is_left_out_and_says_of_what() -> None:
    parsed = sifted("The green kettle is for oolong.", "the green kettle is for oolong")
    assert fault([parsed[1]]) == "1.md:1: what is known already: The green kettle is for oolong."
    assert fault(sifted("It leaks", stored=("it leaks!",))) == (
        "0.md:1: what is known already: it leaks!"
    )


def test_the_same_of_two_users_is_no_duplicate() -> None:
    alice, bob = (f"---\nuser_id: {name}\n---\nLikes tea a lot" for name in ("alice", "bob"))
    assert all(isinstance(each, Item) for each in sifted(alice, bob))


def test_an_observation_that_a_session_repeats_is_left_out() -> None:
    rows = json.loads(json.dumps(CLAUDE_MEM))
    again = {**rows["observations"][0], "id": 13, "created_at_epoch": 1_771_405_299_000}
    rows["observations"].append(again)
    sifter = Sifter(Sieve())
    parsed = [sifter.sifted(each) for each in read_json(rows)[1] if isinstance(each, Item)]
    left_out = [each for each in parsed if isinstance(each, Fault)]
    assert fault(list(left_out)).startswith("x.json: observations id 13: what is known already")


# -- whatever a file holds ------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
GOOD: dict[str, Any] = {
    "results": MEM0["results"][0],
    "memories": NOMEN_LIST["memories"],
    **{table: CLAUDE_MEM[table][0] for table in ("sessions", "prompts", "summaries")},
    "observations": CLAUDE_MEM["observations"][0],
}
GOOD["memories"] = GOOD["memories"][0]
FIELDS = sorted({name for row in GOOD.values() for name in row})


@example("prompts", {"prompt_number": [1]})
@example("observations", {"prompt_number": {}})
@example("memories", {"scope": json.loads("[" * 300 + "]" * 300)})
@given(st.sampled_from(sorted(GOOD)), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
def test_a_row_of_any_values_is_taken_or_refused_and_stops_nothing(
    table: str, changed: dict[str, Any]
) -> None:
    rows = [GOOD[table], {**GOOD[table], **changed}, GOOD[table]]
    _, parsed = read_json(json.dumps({table: rows}).encode())
    sifter = Sifter(Sieve())
    for each in parsed:
        assert isinstance(each, Item | Fault)
        if isinstance(each, Item) and isinstance(each.record, Note | Recorded):
            sifter.sifted(each)
            assert draft_of(each.record, 1).created_at >= 0


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_a_document_of_any_bytes_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(Invalid):
        read_json(data)


@given(
    st.sampled_from(["", "---\n", "---\nrookery: ", MEM0_MARKDOWN[:160], NOMEN[:60]]),
    st.lists(
        st.sampled_from(["---", "- x", "a: b", "d_tag: y", "{}", "\r", "\u2028", "'", '"', ":"])
    ),
    st.text(),
)
def test_markdown_of_any_text_is_read_or_refused(head: str, lines: list[str], tail: str) -> None:
    text = head + "\n".join([*lines, tail])
    for form in Form:
        for each in markdown_in(text, "a.md", form, READER):
            assert isinstance(each, Item | Fault)
