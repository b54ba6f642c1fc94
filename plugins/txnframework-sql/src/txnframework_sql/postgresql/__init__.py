"""
PostgreSQL by the public API of asyncpg: its pool, URL parser, statement cache and timers.

The layers, lowest first:

* ``_server`` parses URLs, and ``_errors`` translates errors.
* A ``_connection`` executes statements and transactions, and decides writes that got no reply; ``_setup`` connects,
  and ``_pooler`` checks that a pooler keeps sessions.
* ``_pool`` lends connections. A process has one pool for each database.
* ``_notifier`` sends the changes of this process as ``_payloads``, and ``_listener`` receives those of others.
* ``_schema`` creates the tables, and the SQL functions in ``functions``.
* ``_executor`` performs steps in transactions, and ``_leases`` renews a session over a connection of its own.
* Frequent operations use their own statements, which simultaneous calls share (``_call_groups``): ``_records`` and
  ``_entries`` with ``_step_calls``, and ``_entries`` with ``_appends``.
* ``_database`` opens a database, and provides all of this to the stores.
"""
