"""Aman: preferences, summaries, tool history of a messaging agent. MEMORY.md §2."""
