"""The demo: audit a directory tree for duplicate files, with a scheduler and workers."""
