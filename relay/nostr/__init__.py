"""The Nostr protocol: events, kinds, filters, messages, keys; one file for each algorithm of a NIP.

May enter: what needs a NIP only, and nothing of this relay or its client. Pure; imports
`relay.errors` only, and could be shipped alone.
"""
