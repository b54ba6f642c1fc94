"""Topics as output: tasks stage rows under branches of a transaction, the driver decides it."""
