"""``python -m lowc`` is the command ``lowc``."""

import sys

from lowc.cli import main

sys.exit(main())
