"""
``txnframework compare``: one workload through every transaction family, on one backend, in one run.

``families`` defines what is compared, as data; ``backends`` creates empty stores for each family; ``counting`` counts
writes in front of the stores; ``system`` is a family opened_system on such stores. ``measures`` has one module for each
measure: a function that takes an opened_system system and returns figures. ``running`` takes the measures in rounds,
alternating the families, and returns ``results``. ``document`` writes the results as JSON, ``tables`` as tables,
``plots`` as pictures. ``command`` is the command line.
"""
