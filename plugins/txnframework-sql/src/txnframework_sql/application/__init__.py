"""
A step inside the application's own database transaction: one COMMIT decides both.

``_kinds`` recognizes the application's connection and chooses its adapter: one for each driver, all with the methods of
``_connection``. ``_postgresql`` and ``_sqlite`` prove that the connection uses the database of the store, and write the
record over it. A driver is imported only if the application has imported it already.
"""
