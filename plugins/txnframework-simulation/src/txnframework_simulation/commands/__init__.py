"""What is typed: ``txnframework simulate`` and ``txnframework torture``."""
