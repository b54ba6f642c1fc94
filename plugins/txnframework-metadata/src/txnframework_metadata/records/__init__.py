"""
The family's records in the metadata store.

``headers`` reads and ends transactions. ``operations`` writes and reads what they did; ``views`` interprets it (pure).
"""
