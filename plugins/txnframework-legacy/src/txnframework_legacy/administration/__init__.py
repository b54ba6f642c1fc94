"""
Operator tools for batching in the logs: ``standing`` reads the contents of a log, ``administering`` switches batching
and reports status, ``command`` is the command line.
"""
