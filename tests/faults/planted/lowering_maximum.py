"""Lowering: the larger of two values is the smaller one."""

from lowc.lowering.table import TABLE

TABLE["aten.maximum.default"] = TABLE["aten.minimum.default"]
