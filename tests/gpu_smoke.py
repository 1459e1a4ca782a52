"""A minute's worth of the tests that need a GPU, for a machine that is lent for minutes.

    python -m tests.gpu_smoke [what pytest takes]

Some models, attention and its gradients, and what is called with other sizes; ``python -m pytest -m gpu tests`` runs all.
"""

import sys

import pytest

FILES = ("tests/e2e/test_attention_gpu.py", "tests/e2e/test_gpu_rows.py", "tests/e2e/test_deterministic.py")


def main() -> int:
    return int(pytest.main(["-q", "-m", "gpu or not (slow or sweep)", "-n", "0", "--durations=5", *FILES, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
