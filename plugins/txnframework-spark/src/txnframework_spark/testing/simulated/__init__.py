"""
Pipelines in simulations: what Spark does around a source and a sink, without Spark, over the real code of both.

Spark itself cannot be stopped between any two steps under a seed. What it calls, and in which order, was taken from
watching it, and is done here by coroutines: ``checkpoint`` is what it keeps, ``driver`` one run of a query with its
tasks, ``pipelines`` the workload, in which several hosts start runs of one application that take over from each other.

``pipelines.toml`` is a scenario for ``txnframework simulate --scenario``; ``mutants.toml`` has rules of pipelines, each
broken in the code, for ``txnframework simulate --mutants --table``.
"""
