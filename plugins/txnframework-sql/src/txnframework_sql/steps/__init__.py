"""
The operations of a database as steps: generators that yield statements and are sent their results.

Nothing here knows a driver. An executor performs the steps of one transaction on a connection, and may restart them. A
step function therefore reads, decides and writes, and has no other effect.
"""
