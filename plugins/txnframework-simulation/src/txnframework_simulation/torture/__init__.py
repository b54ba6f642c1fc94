"""
Torture: real processes over real stores are disrupted, and the history of their clients is checked afterwards.

Hosts are embedded: each process opens txnframework over shared stores, and its clients run in it. ``worker`` is such a
process. It runs several actors of a workload (``txnframework_simulation.workloads``) and appends each operation and
each reply to a file. If applications can have tables in the database of the metadata store (``tables``), another actor
writes rows of its own, and kills its process at the steps of its transactions (``steps``). ``member`` starts one
process after the other in a slot, behind proxies. ``disruptions`` draws the disruptions of the processes from a seed.
``run`` is the whole run, ``report`` its result.
"""
