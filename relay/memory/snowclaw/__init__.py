"""Snowclaw: what a group agent knows of people and groups, and how it behaves. MEMORY.md §4."""
