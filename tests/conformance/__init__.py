"""Which test proves which statement: docs/conformance.md and a part of docs/memory.md.

    statements.md    the numbered statements of the protocol, in our words
    memory.md        those about agents' memory
    left_out.toml    the statements that no test proves, and why
    proves(...)      the marker by which a test names what it proves; a conversation script
                     names it in its first comment lines

`python -m tests.conformance` writes the pages, `--check` says whether they are fresh and nothing is
open, `--missing` lists what is open. A marker with an id that does not exist ends the collection.
"""
