"""
The family's records in the metadata store: ``views`` interprets them (pure), ``operations`` writes and reads them.
"""
