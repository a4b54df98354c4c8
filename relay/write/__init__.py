"""The write pipeline: an EVENT or a management change, from submission to commit, OK and delivery.

May enter: what happens between the session and the store's transaction. `judge` is pure and the one
place that knows in which order an event is judged; state changes in the lane, after the commit.
"""
