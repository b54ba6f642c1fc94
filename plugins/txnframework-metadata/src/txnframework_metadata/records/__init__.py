"""
The family's records in the metadata store.

``headers`` reads and ends transactions. ``operations`` writes and reads their operation records; ``views`` interprets
these (pure). ``shared_operations`` lets concurrent calls of one process share steps of the store, which
``call_groups`` gathers.
"""
