"""Format and meaning of the entries of a topic and its sidecar; no I/O."""
