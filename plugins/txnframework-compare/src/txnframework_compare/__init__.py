"""
``txnframework compare``: one workload through every transaction family, on one backend, in one run.

``families`` defines the compared families as data. ``backends`` creates empty stores for each family. ``write_counts``
counts the writes to the stores. ``system`` opens a family on such stores. ``measures`` has one module for each measure:
a function that takes an opened system and returns figures. ``comparison`` takes the measures in rounds, alternating the
families, and returns ``results``. ``document`` writes the results as JSON, ``tables`` as tables, ``plots`` as pictures.
``command`` is the command line.
"""
