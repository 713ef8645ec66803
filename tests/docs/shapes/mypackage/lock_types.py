"""What this package locks."""

from diracx.tasks.plumbing.lock_registry import register_locked_object_type

STAR = register_locked_object_type("star")
