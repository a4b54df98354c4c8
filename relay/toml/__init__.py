"""TOML files of the admin: typed values, and faults with file, line and the nearest valid name.

May enter: what any such file needs; no setting by name. Pure; used by `relay.config` and
`policies`.
"""
