"""Which folder the cache is, as the options say."""

import os
import sys
from functools import cache

from lowc.cache.folder import Folder
from lowc.options import Options

MIB = 1 << 20


def folder_of(options: Options) -> Folder | None:
    """The folder that ``options`` mean; None if they switch the cache off.  One object a folder, which warns once."""
    if not options.cache or options.cache_limit_mb <= 0:
        return None
    return _folder(os.path.abspath(options.cache_dir or default()), options.cache_limit_mb * MIB)


@cache
def _folder(path: str, limit: int) -> Folder:
    return Folder(path, limit)


def default() -> str:
    """The folder "lowc" where this system keeps a user's caches."""
    if sys.platform == "linux":  # what platformdirs says there, without the time that its import takes
        home = os.environ.get("XDG_CACHE_HOME", "").strip()
        return os.path.join(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "lowc")
    from platformdirs import user_cache_dir

    return user_cache_dir("lowc", appauthor=False)
