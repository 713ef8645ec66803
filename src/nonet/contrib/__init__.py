"""Optional extras: integrations with other packages, and a canary task."""
