"""The demo: audit a directory tree for duplicate files, with real daemons."""
