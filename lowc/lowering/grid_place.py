"""Where grid_sampler reads: a coordinate of -1 .. 1 as a place in one dimension of the input, and the slope of that.

ATen has two sets of formulas: its vector code (two dimensions on a CPU, ``cpu/GridSamplerKernel.cpp``), and its scalar code
(three dimensions, and GPUs; ``GridSampler.h``, ``GridSampler.cuh``).  They agree but for rounding, for how coordinates are
folded that lie very far outside, and for NaN.  All is computed in the dtype of the grid, f16 and bf16 rounded at each step, as
ATen does.
"""

from dataclasses import dataclass

from lowc.ir.index import Index, constant, prove_nonneg
from lowc.ir.nodes import Expr
from lowc.ir.types import DType, bool_, f16, i64
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import cast, const, like, op, select

ZEROS, BORDER, REFLECTION = range(3)
FAR = 2.0**31  # beyond this GPUs count a coordinate as outside


@dataclass(frozen=True, slots=True)
class Side:
    """A dimension of the input, ``size`` long.  ``vector``: the formulas of ATen's vector code; ``gpu``: those of CUDA."""

    b: Builder
    size: Index
    dtype: DType
    padding: int
    align: bool
    vector: bool
    gpu: bool

    def number(self, value: float) -> Expr:
        return const(value, self.dtype)

    def length(self, less: int = 0) -> Expr:
        """``size - less`` as a float."""
        return cast(self.b.index(self.size - less), self.dtype)

    @property
    def scale(self) -> Expr:
        """How many elements a step of 1 in the grid is."""
        return op("mul", self.length(1 if self.align else 0), self.number(0.5))

    def unnormalized(self, x: Expr) -> Expr:
        """The coordinate -1 .. 1 in elements, before padding."""
        shifted = op("add", x, self.number(1))
        if self.vector:
            scaled = op("mul", shifted, self.scale)
            return self.b.let(scaled if self.align else op("sub", scaled, self.number(0.5)))
        if self.align:
            return self.b.let(op("mul", op("mul", shifted, self.number(0.5)), self.length(1)))
        return self.b.let(op("mul", op("sub", op("mul", shifted, self.length()), self.number(1)), self.number(0.5)))

    def padded(self, x: Expr) -> Expr:
        """``x``, in elements, brought back into the input as the padding says."""
        if self.padding == REFLECTION:
            x = self.reflected(x)[0]
        if self.padding != ZEROS:
            x = self._clipped(x)
        return self._reachable(x)

    def padded_with_slope(self, x: Expr) -> tuple[Expr, Expr]:
        """``padded(x)``, and its derivative by the coordinate in the grid: 0 where it is held at an edge."""
        slope = self.scale
        if self.padding == REFLECTION:
            x, sign = self.reflected(x)
            slope = op("mul", sign, slope)
        if self.padding != ZEROS:
            last, zero = self.length(1), self.number(0)
            below, above = self.b.let(op("le", x, zero)), self.b.let(op("ge", x, last))
            x = self.b.let(select(below, zero, select(above, last, x)))
            held = op("or", below, above)
            slope = select(held, zero, slope) if self.vector else op("mul", slope, select(held, zero, self.number(1)))
        return self._reachable(x), self.b.let(slope)

    def _clipped(self, x: Expr) -> Expr:
        """0 .. size-1.  A NaN is 0, and size-1 in scalar code on a CPU (``std::max``, then ``std::min``)."""
        last, zero = self.length(1), self.number(0)
        if self.vector or self.gpu:
            low = self.b.let(select(op("gt", x, zero), x, zero))
        else:
            low = self.b.let(select(op("lt", x, zero), zero, x))
        return self.b.let(select(op("lt", low, last), low, last))

    def reflected(self, x: Expr) -> tuple[Expr, Expr]:
        """``x`` folded at both ends (at the middle of the outermost elements, or with ``align`` false at their outer edges), and
        1 or -1: which way it moves with x."""
        low = self.number(0 if self.align else -0.5)
        away = op("sub", x, low)
        away = x if self.align and self.vector else self.b.let(away)
        back = op("lt", away, self.number(0))
        distance = self.b.let(op("abs", away))
        place, turned = (self._folded if self.vector else self._folded_exactly)(distance)
        if not (self.align and self.vector):
            place = op("add", place, low)
        sign = select(op("xor", turned, back), self.number(-1), self.number(1))
        if not self.align or prove_nonneg(self.size - 2):
            return self.b.let(place), sign
        if constant(self.size) == 1:
            return self.number(0), self.number(0)
        single = self.b.let(op("le", self.b.index(self.size), const(1, i64)))
        return self.b.let(select(single, self.number(0), place)), select(single, self.number(0), sign)

    def _folded(self, distance: Expr) -> tuple[Expr, Expr]:
        """Vector code: what is left of whole rounds there and back."""
        around = op("mul", self.length(1 if self.align else 0), self.number(2))
        rounds = op("trunc", op("div", distance, around))
        ahead = self.b.let(op("sub", distance, op("mul", rounds, around)))
        behind = self.b.let(op("sub", around, ahead))
        turned = self.b.let(op("gt", ahead, behind))
        return select(turned, behind, ahead), turned

    def _folded_exactly(self, distance: Expr) -> tuple[Expr, Expr]:
        """Scalar code: the exact remainder of one way, and whether the number of ways is odd (as an int of C: none from 2**31
        on)."""
        span = self.length(1 if self.align else 0)
        ways = self.b.let(op("floor", op("div", distance, span)))
        half = op("mul", ways, self.number(0.5))
        odd = op("ne", op("floor", half), half)
        if self.dtype != f16:
            odd = op("and", odd, op("lt", ways, self.number(FAR)))
        odd = self.b.let(odd)
        left = self.b.let(op("fmod", distance, span))
        return select(odd, op("sub", span, left), left), odd

    def _reachable(self, x: Expr) -> Expr:
        """On a GPU what is no number, or no int, lies outside."""
        if not self.gpu:
            return x
        near = op("lt", op("abs", x), self.number(float("inf") if self.dtype == f16 else FAR))
        return self.b.let(select(near, x, self.number(-100)))

    def position(self, x: Expr) -> Expr:
        """``x``, an integral number, as an integer; what lies outside, or is NaN, as one that lies outside."""
        near = op("and", op("ge", x, self.number(-2)), op("le", x, self.length()))
        return self.b.let(cast(select(near, x, self.number(-2)), i64))

    def element(self, position: Expr) -> tuple[Index, Expr]:
        """A coordinate that may be read where the mask is true."""
        inside = op("and", op("ge", position, like(0, position)), op("lt", position, self.b.index(self.size)))
        mask = self.b.let(inside)
        where, guard = self.b.checked(position, self.size, mask)
        assert guard is not None and guard.dtype == bool_
        return where, guard
