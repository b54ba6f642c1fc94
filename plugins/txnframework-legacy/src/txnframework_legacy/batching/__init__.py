"""
Batching of the family's logs, as an operator has it: switched while hosts run, measured, and looked at (PIP-160).

``switches`` is what is stored, ``following`` how a host learns of it, ``writers`` makes the writers of a host's logs,
``metrics`` counts what they write. ``standing`` reads what is in a log, ``administering`` does what the commands in
``command`` ask for.
"""
