"""All SQL of the store: whole statements and scripts as `.sql` files, composed text as modules.

Text is composed of fixed pieces. Values are bound, but for the numbers of policy files.
tests/unit/storage/test_sql_in_one_place.py finds SQL elsewhere; tests/golden/sql.txt shows what is
composed.
"""
