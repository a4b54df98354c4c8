"""TOML files of the admin: typed values, and faults with file, line and the nearest valid name.

Used by `relay.config` and `policies`. Pure; knows no setting by name.
"""
