"""On PYTHONPATH of a program: its SQLite behaves as one built without SECURE_DELETE.

Such a build differs in the default of `PRAGMA secure_delete` alone.
"""

import sqlite3

_connect = sqlite3.connect


def connect(*args, **options):  # type: ignore[no-untyped-def]
    db = _connect(*args, **options)
    sqlite3.Connection.execute(db, "PRAGMA secure_delete = OFF").close()
    return db


sqlite3.connect = connect
