"""Fusion: a map is inlined under a mask and is not 0 outside of it."""

from lowc.scheduler import inline

inline.zero_outside = lambda value, mask: value
