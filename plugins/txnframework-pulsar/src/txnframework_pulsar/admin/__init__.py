"""
The part of Pulsar's admin REST API that clients and ``pulsar-admin`` need to work with topics.

Every gateway answers it from the stores, whichever gateway serves.
"""

from __future__ import annotations
