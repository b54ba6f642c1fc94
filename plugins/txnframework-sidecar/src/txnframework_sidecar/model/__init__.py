"""What the entries of a topic and of its sidecar look like, and what they mean; pure, without I/O."""
