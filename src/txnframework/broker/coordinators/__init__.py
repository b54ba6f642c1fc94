"""Coordinators of a host: distribution over hosts, deadlines, sweeps, participants."""
