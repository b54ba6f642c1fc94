"""Tools for tests of pipelines, also by plugin authors.

``cluster`` is Spark's own cluster, on this machine. ``pipelines`` runs pipelines in separate processes that can be
killed at any step of a batch. ``program`` is the code of these processes. ``stores`` reads their inputs and outputs,
and ``expectations`` compares them.
"""
