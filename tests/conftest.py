"""No test uses the user's cache: it is off, but for tests that name a folder of their own."""

import os
import tempfile

os.environ["LOWC_CACHE"] = "0"
os.environ["LOWC_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), "lowc-tests-should-not-make-this")
