"""Transcripts: conversations of coding agents.

encoding    lines → blocks → notes ┐
            lines → paths → archive ┴ transcript, by a plan that may include stripping
            lines → classic: the specification's form
decoding    sources → copies → assembly
reading     display, token_usage, records
"""
