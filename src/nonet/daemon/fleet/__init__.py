"""A fleet: one supervisor process, and the workers that it starts and ends on this machine."""
