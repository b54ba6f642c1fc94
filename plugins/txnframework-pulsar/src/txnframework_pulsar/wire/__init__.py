"""The binary protocol as bytes: frames, messages and batches. Nothing in here does I/O."""
