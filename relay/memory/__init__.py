"""Memory for agents: pure modules, one package for each memory system.

The relay's core and the policies use `registry` and the modules beside it, never a system by name.
No I/O, no clock: time, keys and random bytes are arguments.
"""
