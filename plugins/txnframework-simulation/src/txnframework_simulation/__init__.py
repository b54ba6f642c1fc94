"""
Simulation and torture: check that the framework and its plugins keep their promises under faults.

``simulator`` runs hosts on one event loop in virtual time, over shared stores in memory. A seed draws the faults.
``torture`` disrupts real processes over real stores. In both, clients run ``workloads``, and ``history`` records their
operations and the replies. ``checkers`` judge a history, and nothing else. ``mutants`` break one rule of the protocol
at a time, to test that the simulation detects it.

``commands`` contains ``txnframework simulate`` and ``txnframework torture``.
"""
