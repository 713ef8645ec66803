"""An application without tasks."""
