"""How a test uses a client that lives in a process of its own."""
