"""Topics as output: tasks stage rows under branches of a transaction, and the driver decides the transaction.

A stream (``streaming``, ``committing``) and a batch job (``batch``, ``jobs``) differ in where the transaction begins
and in how it is judged (``judging``). The rest is shared. An ``attempt`` of a task groups its rows by topic and segment
(``routing``, ``hashing``), encodes them as entries (``columns``, ``staging``), appends the entries (``appends``) and
reports its branch (``staged``). The ``ending`` lists the branches that count by one compare-and-set.
"""
