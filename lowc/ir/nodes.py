"""Every node of the loop IR.  The grammar and the levels are in docs/design.md; what nodes mean is here.

Identity     A node is equal only to itself (``eq=False``); nodes may be shared.  Compare structure with ``walk.same``.
Order        Statements run in order.  Iterations of an axis of any kind but ``serial`` may run in any order, or at once, so no
             two of them touch the same element if either writes it (reducers excepted).  Such a loop is fork-join: it ends when
             all iterations have ended.  An extent may depend on outer axes; below 1 it runs no iteration.
Let          Evaluated once, where it stands.  Names are unique in a kernel.  Expressions are pure and never trap.
Accumulator  ``Acc`` sets it to the reducer's identity; the loops between the Acc and its Updates are its reduction axes.
             After them it is a value (several loops in turn may update it).  Read inside, after its Update, it is the
             inclusive prefix in axis order (a scan).  Grouping is free, and float sums may be reassociated there only; the result
             depends on kernel, sizes and target, never on timing.  Alloc with a reducer is an array of accumulators.
Masks        A masked-off load reads nothing and is 0; a masked-off store or update does nothing; their indices may be anything.
             An unmasked index out of bounds is undefined: data-dependent coordinates pass through ``check_index``.
Checks       ``check_index`` and ``check_nonzero`` yield a safe value and, where their mask holds and the check fails, make the
             call raise.  They stay in their loop, and what wraps them in a condition must AND it into their mask.
Integers     wrap at their width.  Index expressions are exact integers (emitted in i64); ``x // 0`` and ``x % 0`` do not trap.
Floats       IEEE 754 with NaN, inf, -0.0, denormals.  No contraction, no reassociation, no reciprocal: ``fma`` rounds once,
             ``mad`` once or twice as the target likes; ``product``, as what a sum takes up, need not be rounded before.
             An op on f16 or bf16 computes in f32 and rounds.
Aliasing     Distinct buffers never overlap, nor do the elements of one that is written to (those of others may: stride 0).
"""

from dataclasses import dataclass

from lowc.ir.index import ZERO, Axis, Index, Symbol
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
    """How an axis is bound: serial, parallel, vector, unroll, block, thread, warp, instr, pipeline, teams.

    A vector loop whose extent is no multiple of ``width`` runs its last strip masked.  ``interleave``: strips that a vector
    loop keeps in flight at a time, each with accumulators of its own (hides the latency of reductions).
    ``width`` is the lanes of a vector axis, the factor of an unrolled one, the threads of a thread axis, the iterations of a
    parallel one below which it stays on one core, the stages of a pipeline, the teams of threads that have iterations in turn;
    ``key`` names the instruction of an instr axis (the nest is its meaning).  Turns of an unrolled loop ``APART`` are not mixed.
    """

    name: str = "serial"
    width: int = 0
    key: str = ""
    interleave: int = 1


APART = "apart"  # the key of an unrolled loop each turn of which is a block of code of its own
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
    mask: Expr | None = None


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
    """Memory of static size from here to the end of the enclosing block; undefined, or set to the identity of ``reducer``."""

    buffer: Buffer
    reducer: str = ""


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

    ``args`` and ``kwargs`` are what ATen takes, tensors as Views.  ``results`` has one entry for each tensor it returns
    (None where unused; a Symbol where a number comes back); each becomes the storage of that buffer.  ``writes``: inputs
    that it changes. ``because`` says why lowc has no kernel for it.  ``lowc.size.default`` is no op of ATen's, see
    ``ir/arithmetic.py``.
    """

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    results: tuple[Buffer | Symbol | None, ...]
    writes: tuple[Buffer, ...] = ()
    because: str = ""
    origin: tuple[str, ...] = ()


Step = Launch | Extern


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """What one call does: ``steps`` in order over ``buffers``.

    ``inputs`` are the arguments of a call in order: buffers, sizes (a Symbol, or None where the number is of no use),
    others None. A store to an input is always alive (it is a mutation the user sees).  ``outputs`` are the Views and
    numbers returned, ``temps`` are made by steps (a returned temp is allocated as an output).  A symbol that is no input is
    the size of a dimension of one. ``placed`` (from BUFFERED on) maps a temp's name to its byte offset in the workspace,
    ``workspace`` is that memory's size in bytes.  ``constants``: names of inputs that are the same in each call.
    ``schedules``: (node, number): kernels made of that node shall have that one of their schedules, 0 being the model's best.
    """

    level: str
    symbols: tuple[Symbol, ...]
    inputs: tuple[Buffer | Symbol | None, ...]
    temps: tuple[Buffer, ...]
    outputs: tuple[Arg, ...]
    steps: tuple[Step, ...]
    placed: tuple[tuple[str, Index], ...] = ()
    workspace: Index = ZERO
    constants: tuple[str, ...] = ()
    schedules: tuple[tuple[str, int], ...] = ()


LEVELS = ("LOOPS", "SCHEDULED", "BUFFERED", "MACHINE")
