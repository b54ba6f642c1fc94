"""
Simulation and torture: whether the framework and its plugins keep their promises under faults.

``simulator`` runs hosts on one event loop in virtual time, each over a shared memory, with faults that a seed draws.
``torture`` does the same to real processes over real stores. In both, ``workloads`` are what clients do, and
``history`` records what they asked for and were told. ``checkers`` judge a history, and nothing else. ``mutants``
break one rule of the protocol at a time, to see that the simulation notices.

``commands`` are ``txnframework simulate`` and ``txnframework torture``.
"""
