"""
Torture: processes over real stores, which are killed, paused and cut off, and a history that is checked afterwards.

Hosts are embedded, so a broker is a process that has opened txnframework over shared stores, and a client lives in it.
``worker`` is such a process: several actors of a workload (``txnframework_simulation.workloads``) that append what they
ask for and are told to a file, each line before the next step. ``member`` starts one after the other in a place of its
own, behind proxies of its own; ``disruptions`` are what happens to them, drawn by a seed. ``settling`` is the end,
``run`` the whole, ``result`` what came of it. ``txnframework torture`` is what a person types.
"""
