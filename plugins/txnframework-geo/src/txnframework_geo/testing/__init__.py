"""Simulations of a replication under seeds and faults; needs the extra ``testing``."""
