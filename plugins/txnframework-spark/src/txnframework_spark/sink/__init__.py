"""Topics as output: tasks stage rows under branches of a transaction, and the driver commits or aborts it.

A stream (``stream``) and a batch job (``job``) differ in where the transaction begins and in how it is judged
(``verdict``). The rest is shared. An attempt of a task groups its rows by topic and segment and encodes them as entries
(``rows``), appends the entries, and reports its branch (``branch_writer``). The ``commit`` lists the branches that
count by one compare-and-set. ``acknowledgment`` commits a batch that another sink has written.
"""
