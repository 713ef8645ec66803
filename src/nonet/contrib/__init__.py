"""What ties Nonet to other packages; each module needs an extra, as ``nonet[fastapi]``."""
