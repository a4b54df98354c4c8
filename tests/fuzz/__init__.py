"""Fuzzing: what nobody would send, sent; all of it in `make fuzz`, a little in `make test`."""
