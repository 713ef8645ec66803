"""What nobody needs who does not ask for it: ties to other packages, and a canary task."""
