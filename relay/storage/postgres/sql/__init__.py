"""All SQL of the PostgreSQL store: whole statements and scripts as `.sql` files, composed text as
modules.

Text is composed of fixed pieces; values are bound by `Parameters`. Conditions are texts over `e`,
a row of events.
"""
