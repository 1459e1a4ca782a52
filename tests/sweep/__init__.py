"""lowc against eager over all of torch's own operator samples (``op_db``): right, or refused.

    python -m tests.sweep --ops add,nn.functional.pad --dtypes float32,int64 --out results.jsonl
    python -m tests.sweep --out results.jsonl --resume            # everything, in several sittings
    python -m tests.sweep --against-inductor                      # what Inductor lowers and lowc does not

``samples`` says what is tried, ``trial`` compiles and runs one sample, ``compare`` judges it, ``workers`` spreads the work over
processes that may die, ``report`` sums up.  Only these tests start processes; lowc never does.
"""
