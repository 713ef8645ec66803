"""A project of Django."""
