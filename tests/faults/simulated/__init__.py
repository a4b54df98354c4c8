"""A relay of which one seed decides everything: when, in which order, and what fails.

Real are `Connection`, `Session`, the queues of queries, `Ingest` with its lanes, `Fanout` and the
groups. Simulated are the event loop and its clock (`loop`), the disk (`disk`) and the sockets
(`client`). `promises` knows what clients were promised and objects when it is not kept; `world`
lets clients do things at random; `mutants` are faults that must be found.

    PYTHONHASHSEED=0 python -m tests.faults.simulated --seed 7 --steps 2000 [--mutant NAME]

Invariants: a seed gives the same run each time, in a process with the same PYTHONHASHSEED: sets of
texts are iterated in another order otherwise.
"""
