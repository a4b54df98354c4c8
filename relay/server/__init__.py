"""Websocket and HTTP: the relay's port, and the control socket.

May enter: what speaks to a socket or HTTP client. `session` is pure, everything else is I/O around
it. Uses `read`, `write` and `state`; implementations come through `services.ServerServices`.
"""
