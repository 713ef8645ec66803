"""The demo: an audit of a directory tree for duplicate files, by real daemons."""
