"""
Pipelines in simulations: Spark's behaviour around a source and a sink, without Spark, over the real code of both.

Spark itself cannot be stopped between any two steps under a seed. Its calls and their order were observed, and are
repeated here by coroutines. ``driver`` is one run of a query with its tasks and its checkpoint. ``pipelines`` is
the workload: several hosts start runs of one application, which take over from each other.

``pipelines.toml`` is a scenario for ``txnframework simulate --scenario``. ``mutants.toml`` contains rules of pipelines,
each broken in the code, for ``txnframework simulate --mutants --table``.
"""
