"""Transcripts: conversations of coding agents. MEMORY.md §3.

there       lines → blocks → notes ┐
            lines → paths → archive ┴ transcript, by a plan that may ask for stripping
and back    sources → copies → assembly
to be read  showing, tokens_used, records
"""
