"""
Batching of a host's logs (PIP-160): by the configuration, or as an operator switches it while hosts run; and measured.

``switches`` is what is stored, ``following`` how a host learns of it, ``writers`` makes the writers of a host's logs,
``metrics`` counts what they write.
"""
