"""What this interpreter never frees."""

import sys
import sysconfig

# Python 3.13 without the GIL keeps every function for ever, and what it refers to, once a second thread has run.
KEPT_FOR_EVER = bool(sysconfig.get_config_var("Py_GIL_DISABLED")) and sys.version_info < (3, 14)
