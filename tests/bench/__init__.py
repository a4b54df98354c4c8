"""The benchmark behind `make bench`: what Rookery does in a second, beside `nostr-relay`."""
