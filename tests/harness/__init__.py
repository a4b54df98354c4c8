"""What tests share: relays, stores and clients to test with, folders, time.

relay_program    `rookery serve` as a program, and a bare client of it
relay_in_process the write pipeline on a real store, without sockets
read_side        what a REQ, a COUNT or a NEG-OPEN needs of a relay
client_in_memory a client whose socket is a list
fake_relay       a relay that answers a real client as a test says
reference_store  the store that is only right, never fast
controlled_store the same, each step held up, failed or counted by a test
folders          policy folders
clock, patience  the time now, and how long to wait
"""
