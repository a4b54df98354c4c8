"""Anamnesis: claims, what they rest on, and who vouches for them. MEMORY.md §6."""
