"""The Nostr protocol without I/O: knows no relay and no client."""
