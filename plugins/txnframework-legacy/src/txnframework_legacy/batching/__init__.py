"""
Batching of a host's logs (PIP-160): enabled by the configuration or by an operator at run time, and measured.

``switches`` are the stored switches, ``following`` reports them to a host's logs, ``writers`` creates the writers of
those logs, ``metrics`` counts what they write.
"""
