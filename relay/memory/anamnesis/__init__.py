"""Anamnesis: memories with provenance, vouches and supersessions."""
