"""A fleet: one supervisor process that starts and ends workers on this machine."""
