"""Files of other memory tools, and files that `rookery memory export` writes, as records.

In: claude-mem (SQLite or JSON) becomes sessions, prompts and observations of nmem; notes of
basic-memory, mem0, nomen and plain markdown become agents' own memory, one record per note, with
the text as it stands in the file. Out: signed events, as JSONL or in markdown.
Invariants: a record's `d` comes from the source's id, never from a time or an absolute path; one
bad record is a `Fault` and does not stop the others.
"""
