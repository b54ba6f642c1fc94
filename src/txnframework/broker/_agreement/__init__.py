"""What hosts that know nothing of each other agree by: compare-and-set on records, and leases."""
