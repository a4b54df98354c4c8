"""Rules that need code, one subject per file; rules of TOML files enable them.

May enter: a function of event and Facts to Reject or None. Pure; applied by `policies.engine`.
"""
