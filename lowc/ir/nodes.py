"""Every node of the loop IR.  The grammar and the levels are in docs/design.md; what nodes mean is here.

Identity     A node is equal only to itself (``eq=False``); nodes may be shared.  Compare structure with ``walk.same``.
Order        Statements run in order.  Iterations of an axis of any kind but ``serial`` may run in any order, or at once.
Let          Evaluated once, where it stands.  Names are unique in a kernel.  Expressions are pure and never trap.
Accumulator  ``Acc`` sets it to the reducer's identity; the loops between the Acc and its Updates are its reduction axes.
             After them it is a value.  Read inside, after its Update, it is the running value (a scan: order kept).
             In all other cases iterations may be combined in any order; float sums may be reassociated there only.
Masks        A masked-off load reads nothing and is 0; a masked-off store writes nothing; their indices may be anything.
             An unmasked index out of bounds is undefined: data-dependent coordinates pass through ``check_index``.
Integers     wrap at their width.  Index expressions are exact integers (emitted in i64).
Floats       IEEE 754 with NaN, inf, -0.0, denormals.  No contraction, no reassociation, no reciprocal: ``fma`` rounds once,
             ``mad`` once or twice as the target likes.  An op on f16 or bf16 computes in f32 and rounds.
Aliasing     Distinct buffers never overlap.  A kernel may read and write one buffer only at equal coordinates of one iteration.
"""

from dataclasses import dataclass

from lowc.ir.index import Axis, Index, Symbol
from lowc.ir.types import DType

# ---------------------------------------------------------------- buffers


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Memory of one dtype.  ``strides`` are in elements; ``space`` is global, shared or local.

    An access has one index for each dimension; its address is ``sum(index * stride)`` elements past the buffer's pointer.
    """

    name: str
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    space: str = "global"


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """The value of a Let or of an accumulator."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """An element of ``buffer``; 0 where ``mask`` (bool) is false."""

    buffer: Buffer
    index: tuple[Index, ...]
    mask: "Expr | None" = None

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True, slots=True, eq=False)
class FromIndex:
    """An index expression as a value of an integer dtype."""

    index: Index
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """A row of ``ops.OPS`` applied to values.  ``cast`` and ``bitcast`` are ops whose target type is ``dtype``."""

    name: str
    args: "tuple[Expr, ...]"
    dtype: DType


Expr = Const | Var | Load | FromIndex | Op

# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Kind:
    """How an axis is bound: serial, parallel, vector, unroll, block, thread, warp, instr.

    ``width`` is the lanes of a vector axis, the factor of an unrolled one, the threads of a thread axis; ``key`` names
    the instruction of an instr axis (the nest is its meaning).
    """

    name: str = "serial"
    width: int = 0
    key: str = ""


SERIAL = Kind()
PARALLEL = Kind("parallel")


@dataclass(frozen=True, slots=True, eq=False)
class For:
    """``axis`` runs over 0 .. extent-1."""

    axis: Axis
    body: "tuple[Stmt, ...]"
    kind: Kind = SERIAL


@dataclass(frozen=True, slots=True, eq=False)
class Let:
    var: Var
    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Acc:
    """Declares accumulators and sets them to the identity of ``reducer`` (``ops.REDUCERS``; two vars for argmax, argmin)."""

    vars: tuple[Var, ...]
    reducer: str


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """Combines ``values`` into accumulators that an Acc of the same reducer declared."""

    vars: tuple[Var, ...]
    reducer: str
    values: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """Writes ``value`` where ``mask`` is true; with a ``reducer``, combines it with what is there."""

    buffer: Buffer
    index: tuple[Index, ...]
    value: Expr
    mask: Expr | None = None
    reducer: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Alloc:
    """Memory from here to the end of the enclosing block; its contents are undefined."""

    buffer: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """``cond`` depends on no vector axis."""

    cond: Expr
    body: "tuple[Stmt, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Barrier:
    """All threads of the block arrive before any goes on, and see each other's writes."""


Stmt = For | Let | Acc | Update | Store | Alloc | If | Barrier

# ---------------------------------------------------------------- kernels and modules


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """``params``: the global buffers it touches, in the order of a launch's arguments; ``sizes``: the symbols it needs."""

    name: str
    params: tuple[Buffer, ...]
    sizes: tuple[Symbol, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A strided window of a module buffer's storage: ``offset`` elements past its pointer, of any ``dtype`` and shape."""

    buffer: Buffer
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Runs ``kernel`` on module buffers, one for each of its params.  ``origin``: the ops fused into it, with user lines."""

    kernel: Kernel
    args: tuple[Buffer, ...]
    origin: tuple[str, ...] = ()


Arg = View | Index | bool | int | float | complex | str | DType | None | tuple["Arg", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Extern:
    """A call of ATen op ``target``.

    ``args`` and ``kwargs`` are what ATen takes, tensors as Views.  ``results`` has one entry for each tensor it returns (None where
    unused); each becomes the storage of that buffer.  ``because`` says why lowc has no kernel for it.
    """

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    results: tuple[Buffer | None, ...]
    because: str = ""
    origin: tuple[str, ...] = ()


Step = Launch | Extern


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """What one call does: ``steps`` in order over ``buffers``.

    ``inputs`` are given, ``outputs`` are the Views and numbers returned, ``temps`` are made by steps (a returned temp is allocated as
    an output).  ``placed`` (from BUFFERED on) maps a temp's name to its byte offset in the workspace.
    """

    level: str
    symbols: tuple[Symbol, ...]
    inputs: tuple[Buffer, ...]
    temps: tuple[Buffer, ...]
    outputs: tuple[Arg, ...]
    steps: tuple[Step, ...]
    placed: tuple[tuple[str, Index], ...] = ()
    workspace: Index | None = None


LEVELS = ("LOOPS", "SCHEDULED", "BUFFERED", "MACHINE")
