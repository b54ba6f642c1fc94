"""Real NATS servers for tests."""

from __future__ import annotations
