"""The store on SQLite: `store.SqliteStore` implements the port `relay.storage`.

May enter: what names a table, a connection or a file of the store; all SQL is in `sql`. Decides
nothing: what is kept is a WritePlan, who may read is a Visibility. Imported by `relay.cli` only.
"""
