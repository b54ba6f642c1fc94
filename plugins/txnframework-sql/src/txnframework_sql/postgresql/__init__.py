"""
PostgreSQL by the public API of asyncpg: its pool, URL parser, statement cache and timers.

The layers, lowest first: ``_server`` parses URLs, and ``_errors`` translates errors. A ``_connection`` executes
statements and transactions. ``_pool`` lends connections; a process has one pool for each database.
``_uncertain_writes`` holds the writes that were sent and got no reply. ``_listener`` receives the changes of other
processes as ``_payloads``. ``_schema`` creates the tables, and ``_functions`` the SQL functions in ``functions``.

Simultaneous calls share a statement (``_call_groups``). ``_records`` does so with the columns of ``_batches``, and
``_entries`` with those of ``_appends``. All other operations are steps, which ``_database`` performs in transactions.
"""
