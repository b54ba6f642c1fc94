"""Every public coroutine of the client, cancelled at every step of the event loop."""
