"""
Handlers of messages: ``Consumer.run``.

``runs`` is the part of a consumer that starts a ``loop``. The loop receives messages, calls the handler, and decides by
``plan`` (pure) what follows a failure. ``messages`` are those that the loop has and the consumer holds, and
``transactions`` those of its handlers.
"""
