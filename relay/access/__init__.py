"""Access: who an author or viewer is and what they may do. Actors, read rules, visibility,
management, quotas.

May enter: what tells who may read or write. Pure: no clock, no I/O, no store; keys, rules, groups
and usage arrive as values. Imports `groups`, `facts` and `nostr` only.
"""
