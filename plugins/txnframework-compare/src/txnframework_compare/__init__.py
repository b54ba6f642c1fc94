"""
``txnframework compare``: one workload through every family of transactions, on one backend, in one run.

``families`` says what is compared, as data; ``backends`` gives each of them a place of its own; ``counting`` stands
before the stores and counts; ``system`` is a family opened there. ``measures`` holds one module for each thing that is
measured: a function that takes an opened system and returns figures. ``running`` takes them in rounds, all families in
turn, into ``results``; ``document`` writes those as JSON, ``tables`` for people, ``plots`` as pictures. ``command`` is
what is typed.
"""
