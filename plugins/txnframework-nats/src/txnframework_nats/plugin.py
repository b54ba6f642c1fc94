"""The plugin hooks; a store is offered here once it keeps the rules of its role."""

from __future__ import annotations
