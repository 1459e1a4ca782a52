"""What the scheduler may know of the hardware: frozen data, filled in by a backend's ``detect``."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """``kind`` is "x86" or "nvptx"; ``cpu`` and ``features`` are LLVM's names.

    ``vector_bits``: 128 (SSE2), 256 (AVX2) or 512 (AVX-512); a GPU thread's widest access.  ``registers``: vector registers,
    or a thread's.  ``l1``, ``l2``, ``l3`` in bytes (a core's; l3 shared); a GPU's ``l1`` is the shared memory that any block may
    have.  ``cores``: logical processors, or SMs.  ``ops``: hardware abilities the legaliser asks for by name, of "fma",
    "scalef", "masked" (cheap masked loads and stores), "gather", "f16c", "avx512bf16" (the op "dot2", 16 at a time, which treats
    denormals as 0), "avx512vnni" and "avxvnni" (the op "dot4" as one instruction), "amx-bf16" and "amx-int8" (a matrix unit for
    ``instr(amx)`` of "dot2", of "dot4"), "rarely" (the op, by a branch), "narrow_atomics" (reducing stores to f16 and bf16),
    "ex2" (2**x and 1/x as instructions, a few units in the last place off), "wgmma" (products of tiles of 16-bit floats, and an
    engine that copies tiles), "mma" (products of such tiles by warps, and copies that threads do not wait for).
    ``shared``: bytes of shared memory that a block may have if it asks for them.
    """

    kind: str
    cpu: str
    features: str
    vector_bits: int
    registers: int
    l1: int
    l2: int
    l3: int
    cores: int
    ops: frozenset[str]
    shared: int = 0
