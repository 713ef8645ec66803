"""A tasks module whose import takes long: it writes to the file `PROBE_IMPORT` when it begins."""

from __future__ import annotations

import os
import time
from pathlib import Path

Path(os.environ["PROBE_IMPORT"]).touch()
time.sleep(600)
