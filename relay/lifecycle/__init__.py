"""Lifecycle: which rows are kept. Rows and plans, versions, deletion with tombstones, retention.

May enter: what decides whether a row is stored, replaced, deleted or swept. Pure: looks at the rows
that were looked up and adds to a WritePlan; never touches a store.
"""
