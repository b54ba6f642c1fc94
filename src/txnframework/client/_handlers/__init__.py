"""
Handlers of messages: ``Consumer.run``.

``runs`` is the part of a consumer that starts a ``loop``, with the ``options`` of the caller. The loop receives
messages, lets ``attempts`` call the handler (``handler_functions``) and acknowledge them, and decides by ``plan``
(pure) what follows a failure. ``hindered_jobs`` are those that wait for something else, such as a database.
``messages`` are those that the loop has and the consumer holds, and ``transactions`` those that handlers get.
"""
