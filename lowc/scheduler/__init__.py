"""A Module @LOOPS in, a Module @MACHINE out, by the passes of ``pipeline``: one file each, with what it takes and gives."""
