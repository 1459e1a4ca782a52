"""What a GPU can do, as a Target, from four numbers that the CUDA driver tells."""

from lowc.backends.nvptx.occupancy import LIMITS
from lowc.errors import CodegenError
from lowc.target import Target

# The CUDA version of a driver (major * 1000 + minor * 10) and the PTX version that it reads; LLVM 22 writes up to 9.0.
PTX_VERSIONS = (
    (13000, 90),
    (12090, 88),
    (12080, 87),
    (12070, 86),
    (12050, 85),
    (12040, 84),
    (12030, 83),
    (12020, 82),
    (12010, 81),
    (12000, 80),
    (11080, 78),
    (11070, 77),
)
# The first PTX version that knows a capability, where it is no older than the list above.
FIRST_PTX = {(9, 0): 80, (10, 0): 86, (10, 1): 86, (10, 3): 88, (11, 0): 90, (12, 0): 87, (12, 1): 88}
LEAST, NEWEST = (7, 0), (12, 1)
ABILITIES = frozenset({"fma", "f16c", "masked", "gather", "round", "rarely", "narrow_atomics", "ex2"})
REGISTERS = 255  # 32-bit ones, of a thread
SHARED = 48 << 10  # bytes that a block has without asking
SYSTEM = 1 << 10  # bytes of a multiprocessor's shared memory that the system takes of each block
AMPERE = (8, 0)


def target(capability: tuple[int, int], sms: int, driver_cuda: int, l2: int) -> Target:
    """The Target for a GPU of compute ``capability`` with ``sms`` multiprocessors, ``l2`` bytes of L2 cache, and a driver for
    CUDA ``driver_cuda`` (12080 is 12.8).

    Raises CodegenError for what is too old.
    """
    major, minor = capability
    if capability < LEAST:
        raise CodegenError(f"a GPU of compute capability {major}.{minor}; lowc needs 7.0 or later")
    version = next((ptx for cuda, ptx in PTX_VERSIONS if driver_cuda >= cuda), 0)
    if version < FIRST_PTX.get(capability, 77):
        raise CodegenError(
            f"a driver for CUDA {driver_cuda // 1000}.{driver_cuda % 1000 // 10} and compute capability {major}.{minor}",
            hint="update the NVIDIA driver",
        )
    major, minor = min(capability, NEWEST)  # PTX for an older capability runs on later ones
    # 9.0a has the instructions that only this one capability has; PTX for it runs nowhere else
    cpu = f"sm_{major}{minor}" + ("a" if capability == (9, 0) else "")
    ops = ABILITIES | ({"wgmma"} if capability == (9, 0) else frozenset[str]())
    ops |= {"mma"} if capability >= AMPERE else frozenset[str]()
    limits = LIMITS.get((major, minor))
    most = max(SHARED, limits.shared - SYSTEM if limits is not None else 0)
    return Target("nvptx", cpu, f"+ptx{version}", 128, REGISTERS, SHARED, l2, l2, sms, ops, most)


def least_shared(capability: tuple[int, int]) -> int:
    """Bytes of shared memory that a block may have on any GPU of ``capability`` or a later one."""
    return min((limits.shared - SYSTEM for found, limits in LIMITS.items() if found >= capability), default=SHARED)


def default() -> Target:
    """The Target to look at code for where no GPU is: an H100 with a driver for CUDA 13.0."""
    return target((9, 0), 132, 13000, 50 << 20)


def adds_four(target: Target) -> bool:
    """Whether one instruction adds four f32 to global memory: PTX 8.1, compute capability 9.0."""
    version = target.features.removeprefix("+ptx")  # "" for a target that is for no driver
    return capability(target) >= 90 and version.isdecimal() and int(version) >= 81


def capability(target: Target) -> int:
    """The compute capability as one number: 90 for 9.0."""
    return int(target.cpu.removeprefix("sm_").rstrip("af"))
