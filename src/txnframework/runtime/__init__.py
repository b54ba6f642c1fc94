"""Asyncio utilities and retries; nothing here knows of messaging."""
