"""Metadata store on Apache ZooKeeper, through kazoo."""

from __future__ import annotations
