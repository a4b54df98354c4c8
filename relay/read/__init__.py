"""The read pipeline: stored rows for REQ, COUNT, search and negentropy, and live delivery.

May enter: what carries rows to a reader. Every row passes one Visibility; everything that waits is
bounded. Reads the store and `state`, changes neither.
"""
