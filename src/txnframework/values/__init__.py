"""
Values that errors have as attributes: ids, positions, keys and states.

They are defined below ``txnframework.errors``, because the rest of ``txnframework.model`` raises errors. Import them
from ``txnframework.model``, which has all values.
"""
