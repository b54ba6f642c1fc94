"""
``txnframework console`` and ``txnframework top``: how a system stands, in a browser and in a terminal.

``connection`` opens the client, also while the stores do not answer. ``catalog`` remembers what was read of topics, so
that many views cost few reads. ``views`` says what each view shows; it uses the client's public API only. For the
browser, ``polls`` shares the readings of a view among browsers, ``pages`` renders them, ``guards`` protects the
console, ``actions`` changes something if it is allowed, and ``app`` and ``server`` connect these parts. For the
terminal, ``terminal`` draws the same views. ``command`` has both commands.
"""
