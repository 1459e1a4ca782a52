"""fmod, exactly: a long division bit by bit, in a function of the module that is made at first use.

(LLVM's own expansion of ``frem`` is x - trunc(x / y) * y, whose error grows with the quotient.)
"""

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.values import Val
from lowc.ir.types import DType

# With integers a and d, the mantissas of |x| and |y|, normalised: for each step from the exponent of x down to that of y,
# subtract d if it fits and shift; the last remainder is normalised again.
TEXT = """define internal {f} @{name}({f} %x, {f} %y) #0 {{
entry:
  %xi = bitcast {f} %x to {i}
  %yi = bitcast {f} %y to {i}
  %sign = and {i} %xi, {signbit}
  %a = and {i} %xi, {rest}
  %d = and {i} %yi, {rest}
  %y0 = icmp eq {i} %d, 0
  %ynan = icmp ugt {i} %d, {inf}
  %xbad = icmp uge {i} %a, {inf}
  %bad1 = or i1 %y0, %ynan
  %bad = or i1 %bad1, %xbad
  br i1 %bad, label %invalid, label %valid
invalid:
  %p = fmul {f} %x, %y
  %q = fdiv {f} %p, %p
  ret {f} %q
valid:
  %less = icmp ult {i} %a, %d
  br i1 %less, label %same, label %divide
same:
  ret {f} %x
divide:
  %aexp = lshr {i} %a, {mbits}
  %dexp = lshr {i} %d, {mbits}
  %afrac = and {i} %a, {mmask}
  %aone = or {i} %afrac, {one}
  %azeros = call {i} @llvm.ctlz.{i}({i} %afrac, i1 false)
  %aup = sub {i} %azeros, {lead}
  %aupper = shl {i} %afrac, %aup
  %alow = sub {i} 1, %aup
  %asub = icmp eq {i} %aexp, 0
  %am = select i1 %asub, {i} %aupper, {i} %aone
  %ae = select i1 %asub, {i} %alow, {i} %aexp
  %dfrac = and {i} %d, {mmask}
  %done = or {i} %dfrac, {one}
  %dzeros = call {i} @llvm.ctlz.{i}({i} %dfrac, i1 false)
  %dup = sub {i} %dzeros, {lead}
  %dupper = shl {i} %dfrac, %dup
  %dlow = sub {i} 1, %dup
  %dsub = icmp eq {i} %dexp, 0
  %dm = select i1 %dsub, {i} %dupper, {i} %done
  %de = select i1 %dsub, {i} %dlow, {i} %dexp
  %steps = sub {i} %ae, %de
  br label %loop
loop:
  %k = phi {i} [ %steps, %divide ], [ %k1, %loop ]
  %m = phi {i} [ %am, %divide ], [ %m2, %loop ]
  %cut = sub {i} %m, %dm
  %fits = icmp uge {i} %m, %dm
  %m1 = select i1 %fits, {i} %cut, {i} %m
  %again = icmp ne {i} %k, 0
  %twice = shl {i} %m1, 1
  %m2 = select i1 %again, {i} %twice, {i} %m1
  %k1 = sub {i} %k, 1
  br i1 %again, label %loop, label %scale
scale:
  %none = icmp eq {i} %m1, 0
  br i1 %none, label %zero, label %some
zero:
  %z = bitcast {i} %sign to {f}
  ret {f} %z
some:
  %zeros = call {i} @llvm.ctlz.{i}({i} %m1, i1 false)
  %up = sub {i} %zeros, {lead}
  %exp = sub {i} %de, %up
  %upper = shl {i} %m1, %up
  %frac = and {i} %upper, {mmask}
  %place = shl {i} %exp, {mbits}
  %placed = or {i} %frac, %place
  %left = sub {i} %de, 1
  %right = sub {i} 1, %de
  %isleft = icmp sgt {i} %de, 0
  %leftby = select i1 %isleft, {i} %left, {i} 0
  %rightby = select i1 %isleft, {i} 0, {i} %right
  %moved = shl {i} %m1, %leftby
  %small = lshr {i} %moved, %rightby
  %normal = icmp sgt {i} %exp, 0
  %magnitude = select i1 %normal, {i} %placed, {i} %small
  %out = or {i} %magnitude, %sign
  %r = bitcast {i} %out to {f}
  ret {f} %r
}}
"""


def fmod(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    """The remainder of args[0] / args[1], with the sign of args[0]."""
    width, fraction = (32, 23) if dtype.bits == 32 else (64, 52)
    name = f"lowc.fmod.f{width}"
    if name not in b.module.declarations:
        sign, one = 1 << width - 1, 1 << fraction
        b.module.declarations[name] = f"declare i{width} @llvm.ctlz.i{width}(i{width}, i1)"
        b.module.functions.append(
            TEXT.format(
                f=args[0].type,
                i=f"i{width}",
                name=name,
                signbit=sign - 2 * sign,
                rest=sign - 1,
                inf=(sign - 1) - (one - 1),
                mbits=fraction,
                mmask=one - 1,
                one=one,
                lead=width - 1 - fraction,
            )
        )
    type_ = args[0].type
    return Val(b.pure(f"call {type_} @{name}({', '.join(f'{type_} {a.text}' for a in args)})"), dtype)
