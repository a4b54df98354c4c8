"""Transcripts: conversations of coding agents. MEMORY.md §3."""
