"""
What an operator sees and does of the logs' batching: ``standing`` reads what is in a log, ``administering`` switches
and tells, ``command`` is the command line's.
"""
