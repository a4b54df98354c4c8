"""Several relays on one PostgreSQL while processes are killed, stopped and cut off.

`world` runs them, `disturbances` harm them, `clients` write and read, `history` is what came of it,
`checker` says which promise was not kept.
"""
