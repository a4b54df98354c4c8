"""The shell that speaks websocket and HTTP."""
