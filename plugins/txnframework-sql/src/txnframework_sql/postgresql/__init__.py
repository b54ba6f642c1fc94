"""
PostgreSQL by the public API of asyncpg: its pool, its parser of URLs, its cache of statements and its timers.

From below to above: ``_server`` says what a URL names, ``_errors`` translates what fails. A ``_connection`` executes
statements and transactions, and is lent by ``_pool``, which a process has one of for each database. A write that was
sent and not answered is one of the ``_uncertain_writes``. ``_listener`` hears which keys others have changed by
``_payloads``. ``_schema`` makes the tables and ``_functions`` the SQL functions in ``functions``.

What is asked for at the same time shares a statement (``_call_groups``). ``_records`` does so with the columns of
``_batches``, ``_entries`` with those of ``_appends``. All else is steps, which ``_database`` performs in transactions.
"""
