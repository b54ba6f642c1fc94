"""The commands ``txnframework simulate`` and ``txnframework torture``."""
