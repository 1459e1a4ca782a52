"""Random and mutated IR text through parser, verifier, passes, interpreter and backends.

    python -m tests.property.ir --cases 20000 --jobs 2
"""
