"""Rookery: a self-hosted Nostr group relay that remembers."""

__version__ = "0.1.0"
