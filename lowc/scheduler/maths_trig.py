"""sin, cos and tan, in f32 and f64: polynomials of the argument that ``maths_reduce`` has reduced to a quarter of a turn."""

from collections.abc import Callable

from lowc.ir.nodes import Expr, Op
from lowc.scheduler import maths_reduce
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit
from lowc.scheduler.maths_pairs import Pair, fast_sum, quotient

LARGE_DOUBLE = 2.0**20


def _reduced(e: Emit, x: Expr, finish: Callable[[Emit, Expr, Expr | None, Expr], Expr], name: str) -> Expr:
    """finish(r, low, n), where |x| - r - low is n * pi/2 modulo 2 pi; two bits of the unsigned n count; r is NaN for inf and NaN.

    In f64 without fma the op ``name`` itself (of the C library) does the large arguments.
    """
    magnitude = e.let(e.abs(x))
    near = maths_reduce.small(e, magnitude, as_pair=name == "tan")
    if x.dtype.bits == 64 and not e.fused:
        return e.rarely(e.gt(magnitude, LARGE_DOUBLE), Op(name, (x,), x.dtype), finish(e, *_named(e, near)))
    bits = e.let(e.unsigned_bits(magnitude))
    least, infinite = (0x48800000, 0x7F800000) if x.dtype.bits == 32 else (0x413 << 52, 0x7FF << 52)
    large = e.let(e.lt(e.sub(bits, least), infinite - least))
    if e.branches:
        slow = e.unnamed()
        return e.rarely(large, finish(slow, *maths_reduce.large(slow, bits)), finish(e, *_named(e, near)))
    far = maths_reduce.large(e, bits)
    r, low, n = (None if a is None or b is None else e.let(e.select(large, a, b)) for a, b in zip(far, near, strict=True))
    assert r is not None
    assert n is not None
    return finish(e, r, low, n)


def _named(e: Emit, reduced: maths_reduce.Reduced) -> maths_reduce.Reduced:
    r, low, n = reduced
    return e.let(r), low, e.let(n)


def _sin_cos(e: Emit, r: Expr, low: Expr | None) -> tuple[Expr, Expr]:
    """sin and cos of r + low for |r| <= 0.81 (f64: 0.786)."""
    if low is not None:
        sine, cosine = _parts(e, r, low)
        return e.add(*sine), e.add(*cosine)
    single = r.dtype.bits == 32
    sines, cosines = (tables.SIN, tables.COS) if single else (tables.SIN_DOUBLE, tables.COS_DOUBLE)
    square = e.let(e.mul(r, r))
    return e.mad(e.mul(e.poly(square, sines), square), r, r), e.mad(e.poly(square, cosines), square, 1.0)


def _parts(e: Emit, r: Expr, low: Expr) -> tuple[Pair, Pair]:
    """sin and cos of r + low, in f64, each as a large term and a small one, which holds ``low`` times the derivative as well."""
    square = e.let(e.mul(r, r))
    sine = e.mad(e.mul(e.poly(square, tables.SIN_DOUBLE), square), r, e.mad(e.mul(square, -0.5), low, low))
    cosine = e.mad(e.poly(square, tables.COS_DOUBLE), square, e.neg(e.mul(r, low)))
    return (r, sine), (e.of(1.0, r), cosine)


def _sign_bit(x: Expr) -> int:
    return 1 << (x.dtype.bits - 1)


def _flipped(e: Emit, y: Expr, flip: Expr) -> Expr:
    """``y`` with the sign changed where the upper bit of ``flip`` is set."""
    return e.bitcast(e.bit_xor(e.unsigned_bits(y), flip), y.dtype)


def _sign_of(e: Emit, x: Expr) -> Expr:
    return e.bit_and(e.unsigned_bits(x), _sign_bit(x))


def _quadrant(e: Emit, r: Expr, low: Expr | None, n: Expr, sign: Expr) -> Expr:
    """sin(r + low + n pi/2), with the other sign if the upper bit of ``sign`` is set."""
    sine, cosine = _sin_cos(e, r, low)
    y = e.select(e.ne(e.bit_and(n, 1), 0), cosine, sine)
    return _flipped(e, y, e.bit_xor(e.shl(e.bit_and(n, 2), r.dtype.bits - 2), sign))


def sin(e: Emit, x: Expr) -> Expr:
    return _reduced(e, x, lambda f, r, low, n: _quadrant(f, r, low, n, _sign_of(f, x)), "sin")


def cos(e: Emit, x: Expr) -> Expr:
    return _reduced(e, x, lambda f, r, low, n: _quadrant(f, r, low, f.let(f.add(n, 1)), f.of(0, n)), "cos")


def tan(e: Emit, x: Expr) -> Expr:
    return _reduced(e, x, lambda f, r, low, n: _tan(f, r, low, n, _sign_of(f, x)), "tan")


def _tan(e: Emit, r: Expr, low: Expr | None, n: Expr, sign: Expr) -> Expr:
    odd = e.let(e.bit_and(n, 1))
    swap = e.let(e.ne(odd, 0))
    if low is None:
        sine, cosine = (e.let(v) for v in _sin_cos(e, r, low))
        y = e.div(e.select(swap, cosine, sine), e.select(swap, sine, cosine))
    else:
        sine, cosine = (fast_sum(e, a, e.let(b)) for a, b in _parts(e, r, low))
        y = quotient(e, _chosen(e, swap, cosine, sine), _chosen(e, swap, sine, cosine))
    return _flipped(e, y, e.bit_xor(e.shl(odd, r.dtype.bits - 1), sign))


def _chosen(e: Emit, cond: Expr, a: Pair, b: Pair) -> Pair:
    return e.let(e.select(cond, a[0], b[0])), e.let(e.select(cond, a[1], b[1]))
