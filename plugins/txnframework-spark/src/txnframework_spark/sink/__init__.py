"""Topics as output: tasks stage rows under branches of a transaction, the driver decides it.

A stream (``streaming``, ``committing``) and a batch job (``batch``, ``jobs``) differ in where the transaction comes
from and in what is judged before it is decided. What lies between is one: an ``attempt`` of a task finds each row its
topic and segment (``routing``, ``hashing``), lays rows out as entries (``columns``, ``staging``), has them appended
(``appends``) and reports its branch (``staged``); and the ``ending`` lists the branches that count by one
compare-and-set.
"""
