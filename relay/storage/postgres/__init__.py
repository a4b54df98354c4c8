"""The store on PostgreSQL: `store.PostgresStore`, for several processes on one database.

Needs the extra `postgres` (asyncpg). All of its SQL is in `sql`.
"""
