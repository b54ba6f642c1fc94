"""What a host counts and times of its own calls, where it was given a ``Metrics``."""
