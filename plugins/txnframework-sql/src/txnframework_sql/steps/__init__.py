"""
What is done in a database: steps, each a generator that yields statements and is sent what they found.

Nothing here knows a driver. Whoever has a connection performs the steps of one transaction on it, and may have to do
so from the beginning again: a step function reads, decides and writes, and has no other effect.
"""
