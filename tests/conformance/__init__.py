"""Which test proves which statement: docs/conformance.md and docs/conformance-memory.md.

    statements.md    the numbered statements about the protocol
    memory.md        the numbered statements about agents' memory
    left_out.toml    the statements that no test proves, each with the reason
    proofs.txt       every proof, one per line; generated, so that a lost one shows in a diff
    proves(...)      the marker by which a test names what it proves; a conversation script
                     names it in its first comment lines

`python -m tests.conformance` writes the pages and proofs.txt, `--check` fails when one of them is
stale or a statement is open, `--missing` lists the open statements. A marker with an unknown id
ends the collection.
"""
