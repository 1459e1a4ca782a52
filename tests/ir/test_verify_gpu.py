"""The rules of kernels for GPUs: each broken once."""

import pytest

from lowc.errors import VerifyError
from lowc.ir.parser import parse_kernel
from lowc.ir.verify import verify_kernel
from lowc.ir.verify_gpu import verify_kernel_threads
from tests.backends.nvptx.kernels import CASES


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if not case.maths])
def test_accepted(name: str) -> None:
    kernel = parse_kernel(CASES[name].text)
    verify_kernel(kernel, "MACHINE")
    verify_kernel_threads(kernel)


BAD = {
    "parallel": ("for i in 4 parallel {\nx[i] = 1.0\n}", "a parallel loop in a kernel for a GPU"),
    "block inside": (
        "for i in 2 block {\nacc s: f32 = add\nfor j in 2 block {\nx[i + j] = 1.0\n}\n}",
        "block loops are the outermost",
    ),
    "three": ("for t in 3 thread(3) {\nx[t] = 1.0\n}", "a power of two"),
    "along z": ("for t in 4 thread(4, z) {\nx[t] = 1.0\n}", "along z"),
    "two widths": (
        "for t in 4 thread(4) {\nx[t] = 1.0\n}\nfor u in 8 thread(8) {\nx[u] = 1.0\n}",
        "a loop over 8 threads in x, others are over 4",
    ),
    "too many": (
        "for t in 64 thread(64) {\nfor u in 32 thread(32, y) {\nx[t] = 1.0\n}\n}",
        "64 x 32 threads",
    ),
    "too many of one": ("for t in 4 thread(2048) {\nx[t] = 1.0\n}", "2048 x 1 threads"),
    "too long": ("for t in n thread(4) {\nx[t] = 1.0\n}", "not known to be at most 4"),
    "nested": ("for t in 4 thread(4) {\nfor u in 4 thread(4) {\nx[t + u] = 1.0\n}\n}", "in one another"),
    "in a vector": (
        "for v in 4 vector(4) {\nfor u in 4 thread(4) {\nx[v + u] = 1.0\n}\n}",
        "a thread loop inside a vector loop",
    ),
    "shared": (
        "for t in 4 thread(4) {\nalloc s: f32[4] @shared\ns[t] = 1.0\n}",
        "declared in a thread loop",
    ),
    "scan read first": (
        "acc s: f32 = add\nfor t in 4 thread(4) {\nx[t] = s\ns add= x[t]\n}",
        "s is read in t elsewhere than after its update",
    ),
    "scan twice": (
        "acc s: f32 = add\nfor t in 4 thread(4) {\ns add= x[t]\ns add= 1.0\nx[t] = s\n}",
        "s is updated 2 times in t",
    ),
    "scan along y": (
        "acc s: f32 = add\nfor t in 4 thread(4, y) {\ns add= x[t]\nx[t] = s\n}",
        "a scan along y",
    ),
    "scan over x and y": (
        "acc s: f32 = add\nfor t in 4 thread(4) {\nfor u in 4 thread(4, y) {\ns add= x[t]\nx[t] = s\n}\n}",
        "a thread loop inside t, which scans s",
    ),
    "scan by turns of a thread": (
        "acc s: f32 = add\nfor t in 4 thread(4) {\nfor k in 4 {\ns add= x[t*4 + k]\nx[t*4 + k] = s\n}\n}",
        "is no statement of it or of a vector loop in it",
    ),
    "scan in strips": (
        "acc s: f32 = add\nfor t in 4 thread(4) {\nfor k in 8 vector(4) {\ns add= x[t*8 + k]\nx[t*8 + k] = s\n}\n}",
        "may have more than 4 iterations",
    ),
    "scan and sum": (
        "acc s: f32 = add\nfor t in 4 thread(4) {\ns add= x[t]\nx[t] = s\n}\n"
        "for u in 4 thread(4) {\nfor k in 4 {\ns add= x[u*4 + k]\n}\n}",
        "is no statement of it or of a vector loop in it",
    ),
    "too early": (
        "acc s: f32 = add\nfor t in 4 thread(4) {\ns add= x[t]\n}\nx[0] = s\nfor u in 4 thread(4) {\ns add= x[u]\n}",
        "s is read before all threads have added to it",
    ),
    "condition": (
        "for r in 4 thread(4, y) {\nif idx(r) < 2 {\nacc s: f32 = add\nfor t in 4 thread(4) {\ns add= x[t]\n}\nx[r] = s\n}\n}",
        "under a condition inside a thread loop",
    ),
    "uneven": (
        "for r in 4 thread(4, y) {\nfor k in r + 1 {\nacc s: f32 = add\nfor t in 4 thread(4) {\ns add= x[t]\n}\nx[r] = s\n}\n}",
        "which differs between threads",
    ),
    "local": (
        "alloc a: f32[4, 2] @local\nfor t in 4 thread(4) {\na[t, 0] = 1.0\na[0, 1] = 2.0\nx[t] = a[t, 1]\n}",
        "must be a leading index of every access",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    body, message = BAD[name]
    kernel = parse_kernel(f"kernel k(n: size 1.., x: f32[64]) {{\n{body}\n}}")
    with pytest.raises(VerifyError, match=message):
        verify_kernel_threads(kernel)
