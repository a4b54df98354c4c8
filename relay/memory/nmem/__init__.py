"""nmem: sessions, prompts, observations of coding agents. MEMORY.md §5."""
