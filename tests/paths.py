"""Where the children of tests find this checkout."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
"""For the environment of a child: this checkout first, then what was there."""
