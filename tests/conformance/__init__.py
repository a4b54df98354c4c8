"""Which test proves which statement of the protocol: docs/conformance.md is made from this.

    statements.md    the numbered statements, in our words
    left_out.toml    the statements that no test proves, and why
    proves(...)      the marker by which a test names what it proves; a conversation script
                     names it in its first comment lines

`python -m tests.conformance` writes the page, `--check` says whether it is fresh and nothing is
open, `--missing` lists what is open. A marker with an id that does not exist ends the collection.
"""
