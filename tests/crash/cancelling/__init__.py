"""Every public coroutine of the client, given up at every step of the event loop."""
