"""Nonet: an async-first task system on Redis Streams."""
