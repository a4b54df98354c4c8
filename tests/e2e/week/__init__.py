"""A week of three agents and two people on two machines, at one relay; one seed decides it.

`world`: the relay, its clock, the machines. `model`: what must come of it, in plain dicts, written
from the documents of the systems. `script`: the steps and the comparison. `mutants`: mistakes that
it must find.
"""
