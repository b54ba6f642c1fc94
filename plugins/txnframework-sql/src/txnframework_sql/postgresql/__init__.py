"""
PostgreSQL: steps performed on held connections, in the event loop, and what is done in one statement.

From below to above: ``_url`` and ``_options`` say which server and how, ``_connecting`` connects, ``_errors``
translates what fails. A ``_connection``, whose replies are waited for with ``_patience``, is lent by ``_connections``,
which a process has one of for each database (``_opened``); what was sent and not answered is in doubt (``_doubts``).
``_listener`` hears which keys others have changed by ``_payloads``, and ``_upgrade`` makes the schema. No connection
searches the schema of the tables: statements name it, by ``_qualified``.

What is asked for at the same time goes together: ``_together`` shares one statement among calls, for ``_records`` by
the columns of ``_batch_groups``; ``_appending`` sends one group at a time to each ledger, which ``_append_groups``
makes up. Both, and ``_entries``, call the functions in ``functions`` (``_functions``). All else is steps, performed by
``_statements``. ``_executor`` does that in transactions, and ``_database`` is what the stores
talk to.
"""
