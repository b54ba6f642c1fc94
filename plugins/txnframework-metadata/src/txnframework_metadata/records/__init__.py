"""
The family's records in the metadata store.

``headers`` reads and ends transactions. ``operations`` writes and reads their operation records; ``views`` interprets
these (pure).
"""
