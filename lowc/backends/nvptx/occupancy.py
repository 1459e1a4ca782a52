"""How many blocks of a kernel a multiprocessor holds at once, from what the kernel takes and what there is.

The limits are those of the CUDA programming guide, appendix "Compute Capabilities", table "Device and Streaming Multiprocessor
Information per Compute Capability" (those of 7.x are in the guide of CUDA 12).  Registers go to warps by 256, a fourth of them to
each of the four parts of a multiprocessor; shared memory goes to blocks by 128 bytes (7.x: 256), after 1 KB that the system takes
of each block from 8.0 on.  Both are as in NVIDIA's occupancy calculator, and a test on a GPU asks the driver.
"""

from dataclasses import dataclass

WARP = 32
REGISTERS = 65536  # 32-bit ones of a multiprocessor, of every capability since 7.0
REGISTER_UNIT = 256
PARTS = 4
KB = 1 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one multiprocessor; ``shared`` in bytes."""

    warps: int
    blocks: int
    shared: int


LIMITS = {
    (7, 0): Limits(64, 32, 96 * KB),
    (7, 2): Limits(64, 32, 96 * KB),
    (7, 5): Limits(32, 16, 64 * KB),
    (8, 0): Limits(64, 32, 164 * KB),
    (8, 6): Limits(48, 16, 100 * KB),
    (8, 7): Limits(48, 16, 164 * KB),
    (8, 9): Limits(48, 24, 100 * KB),
    (9, 0): Limits(64, 32, 228 * KB),
    (10, 0): Limits(64, 32, 228 * KB),
    (10, 3): Limits(64, 32, 228 * KB),
    (11, 0): Limits(48, 24, 228 * KB),
    (12, 0): Limits(48, 24, 100 * KB),
    (12, 1): Limits(48, 24, 100 * KB),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """``blocks`` at once on a multiprocessor; their warps as a ``share`` of what it can hold; ``bound``: what allows no more, of
    "warps", "blocks", "registers", "shared memory"."""

    blocks: int
    share: float
    bound: str


def occupancy(capability: tuple[int, int], threads: int, registers: int, shared: int) -> Occupancy | None:
    """For blocks of ``threads`` with ``registers`` each and ``shared`` bytes together; None for a capability not in the table."""
    limits = LIMITS.get(capability)
    if limits is None:
        return None
    warps = -(-threads // WARP)
    each = -(-max(registers, 1) * WARP // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS // PARTS // each * PARTS // warps
    unit, system = (128, KB) if capability >= (8, 0) else (256, 0)
    memory = -(-(shared + system) // unit) * unit
    bounds = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": by_registers,
        "shared memory": limits.shared // memory if memory else limits.blocks,
    }
    bound = min(bounds, key=bounds.__getitem__)
    return Occupancy(bounds[bound], bounds[bound] * warps / limits.warps, bound)
