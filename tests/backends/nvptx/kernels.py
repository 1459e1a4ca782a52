"""Kernels @MACHINE for NVIDIA GPUs as text: what the tests of this folder compile, interpret and, where a GPU is, run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lowc.ir.ops import APPROXIMATE, MATHS, OPS
from lowc.ir.types import DTYPES, DType
from lowc.scheduler import maths
from tests.backends.nvptx.scans import SCANS, TOLERANCES

COUNT = 510


@dataclass(frozen=True)
class Case:
    """``sizes``: one launch for each.  ``below``: params that hold indices, and their bound.  ``tolerance``: relative.

    ``maths``: ops are to be legalised first.  ``special``: whether inputs hold NaN, infinities and the like.  ``small``:
    inputs are between -100 and 100 (0 and 100 for unsigned).
    """

    text: str
    sizes: tuple[Mapping[str, int], ...] = ({},)
    below: Mapping[str, int] = field(default_factory=dict)
    tolerance: float = 0.0
    special: bool = False
    maths: bool = False
    small: bool = False


KERNELS: dict[str, str] = {
    "own_sums": """kernel own_sums(x: f32[510], out: bf16[510]) {
  for b in 2 block {
    for t in 255 thread(256) {
      alloc s: f32[2] @local
      s[0] = x[b*255 + t]
      s[1] = 1.0
      s[0] add= x[b*255 + t]
      s[1] mul= x[b*255 + t]
      out[b*255 + t] = bf16(s[0] + s[1])
    }
  }
}""",
    "own_minima": """kernel own_minima(x: f32[510], out: bf16[1020], some: bool[510]) {
  for b in 2 block {
    for t in 255 thread(256) {
      alloc s: bf16[2] @local
      alloc e: bool[1] @local
      s[0] = bf16(x[b*255 + t])
      s[1] = bf16(x[b*255 + t])
      e[0] = x[b*255 + t] > 0.0
      for j in 3 {
        s[0] min= bf16(x[b*170 + t + j])
        s[1] add= bf16(x[b*170 + t + j])
        e[0] min= x[b*170 + t + j] > 0.0
      }
      out[b*510 + t*2] = s[0]
      out[b*510 + t*2 + 1] = s[1]
      some[b*255 + t] = e[0]
    }
  }
}""",
    "clamped_columns": """kernel clamped_columns(x: f32[1200], out: f32[40], low: f32[40], at: i64[40], all: bool[40]) {
  for b in 2 block {
    for t in 20 thread(32) {
      acc s: f32 = add
      acc w: f32, i: i64 = argmin
      acc e: bool = and
      for r in 6 thread(8, y) {
        for k in 5 {
          s add= x[b*600 + k*120 + r*20 + t]
          w, i argmin= x[b*600 + k*120 + r*20 + t], idx(k*6 + r)
          e and= x[b*600 + k*120 + r*20 + t] < 4.0 if idx(k + r) > 2
        }
      }
      out[b*20 + t] = s
      low[b*20 + t] = w
      at[b*20 + t] = i
      all[b*20 + t] = e
    }
  }
}""",
    "pairs": """kernel pairs(x: f32[1024], odd: f32[1025], y: f32[1024]) {
  for b in 2 block {
    for t in 64 thread(64) {
      for v in 8 vector(8) {
        w = odd[(t // 8)*64 + b*512 + (t % 8)*2 + (v // 2)*16 + (v % 2) + 1]
        y[b*512 + t*8 + v] = x[(t // 8)*64 + b*512 + (t % 8)*2 + (v // 2)*16 + (v % 2)] + w
      }
    }
  }
}""",
    "small_square": """kernel small_square(x: f32[512], cols: f32[32], most: f32[2], at: i64[2], p: i64[2], d: f64[2]) {
  for b in 2 block {
    acc m: f32, i: i64 = argmax
    acc q: i64 = mul
    acc f: f64 = min
    for t in 16 thread(16) {
      acc s: f32 = add
      for r in 16 thread(16, y) {
        s add= x[b*256 + r*16 + t]
        m, i argmax= x[b*256 + r*16 + t], idx(r*16 + t)
        q mul= i64(x[b*256 + r*16 + t]) | 1
        f min= f64(x[b*256 + r*16 + t])
      }
      cols[b*16 + t] = s
    }
    most[b] = m
    at[b] = i
    p[b] = q
    d[b] = f
  }
}""",
    "many_columns": """kernel many_columns(x: f32[32768], out: f32[512]) {
  for t in 32 thread(32) {
    alloc a: f32[16] @local = max
    for r in 32 thread(32, y) {
      for k in 2 {
        for v in 16 vector(4) {
          a[v] max= x[k*16384 + r*512 + t*16 + v]
        }
      }
    }
    for v1 in 16 vector(4) {
      out[t*16 + v1] = a[v1]
    }
  }
}""",
    "upright": """kernel upright(x: i16[640], out: i16[5], u: u32[5]) {
  for b in 5 block {
    acc s: i16 = add
    acc o: u32 = or
    for r in 64 thread(64, y) {
      for v in 2 vector(2) {
        s add= x[b*128 + r*2 + v]
        o or= u32(x[b*128 + r*2 + v])
      }
    }
    out[b] = s
    u[b] = o
  }
}""",
    "conditions": """kernel conditions(x: f32[1024], out: f32[4], flags: bool[4]) {
  for b in 4 block {
    if flags[b] {
      acc s: f32 = add
      for k in 2 {
        for t in 128 thread(128) {
          s add= x[b*256 + k*128 + t]
        }
      }
      out[b] = s
    }
    if !flags[b] {
      for u in 1 thread(128) {
        out[b] = 1.0
      }
    }
  }
}""".replace("!flags[b]", "not(flags[b])"),
    "shared_atomics": """kernel shared_atomics(x: f32[512], f: f32[4], d: f64[4], g: f64[4], i: i64[4], u: u32[4], o: bool[4],
    c: u8[4], m: f32[4], s: i16[4], w: f32[2]) {
  for b in 2 block {
    alloc a0: f32[2] @shared = add
    alloc a1: f64[2] @shared = add
    alloc a2: f64[2] @shared = max
    alloc a3: i64[2] @shared = min
    alloc a4: u32[2] @shared = or
    alloc a5: bool[2] @shared = and
    alloc a6: u8[2] @shared = add
    alloc a7: f32[2] @shared = max
    alloc a8: i16[2] @shared = mul
    for t in 64 thread(64) {
      for v in 4 vector(4) {
        a0[t % 2] add= x[b*256 + t*4 + v]
        a1[t % 2] add= f64(x[b*256 + t*4 + v])
        a2[t % 2] max= f64(x[b*256 + t*4 + v])
        a3[t % 2] min= i64(x[b*256 + t*4 + v])
        a4[t % 2] or= u32(abs(x[b*256 + t*4 + v]))
        a5[t % 2 if x[b*256 + t*4 + v] > 0.0] and= x[b*256 + t*4 + v] < 20.0
        a6[t % 2] add= u8(abs(x[b*256 + t*4 + v]))
        a7[t % 2] max= x[b*256 + t*4 + v]
        a8[t % 2] mul= i16(x[b*256 + t*4 + v]) | 1:i16
        w[t*100000 + b if (x[b*256 + t*4 + v] > 1.0) & (idx(t) == 0)] add= x[b*256 + t*4 + v]
      }
    }
    barrier
    for t1 in 2 thread(64) {
      f[b*2 + t1] = a0[t1]
      d[b*2 + t1] = a1[t1]
      g[b*2 + t1] = a2[t1]
      i[b*2 + t1] = a3[t1]
      u[b*2 + t1] = a4[t1]
      o[b*2 + t1] = a5[t1]
      c[b*2 + t1] = a6[t1]
      m[b*2 + t1] = a7[t1]
      s[b*2 + t1] = a8[t1]
    }
  }
}""",
    "halves": """kernel halves(x: f16[2048], y: f16[2048], out: f16[2048], m: f16[16]) {
  for b in 2 block {
    for t in 128 thread(128) {
      for v in 8 vector(8) {
        out[b*1024 + t*8 + v] = f16(f32(x[b*1024 + t*8 + v]) + f32(y[b*1024 + t*8 + v]))
        m[t % 8 + b*8] add= x[b*1024 + t*8 + v]
      }
    }
  }
}""",
    "plain": """kernel plain(x: f32[12], out: f32[12]) {
  for b in 3 block {
    for k in 4 {
      out[b*4 + k] = x[-b*4 - k + 11] * 2.0
    }
  }
}""",
    "map_f32": """kernel map_f32(x: f32[10003], y: f32[10003], out: f32[10003]) {
  for b in 10 block {
    for t in 256 thread(256) {
      for v in min(4, -b*1024 - t*4 + 10003) vector(4) {
        out[b*1024 + t*4 + v] = x[b*1024 + t*4 + v] * y[b*1024 + t*4 + v] + 1.0
      }
    }
  }
}""",
    "map_bf16": """kernel map_bf16(x: bf16[8192], out: bf16[8192]) {
  for b in 4 block {
    for t in 256 thread(256) {
      for v in 8 vector(8) {
        out[b*2048 + t*8 + v] = bf16(f32(x[b*2048 + t*8 + v]) * 2.0)
      }
    }
  }
}""",
    "softmax": """kernel softmax(x: f32[4096], out: f32[4096]) {
  for b in 4 block {
    alloc row: f32[128, 8] @local
    acc m: f32 = max
    for t in 128 thread(128) {
      for u in 2 unroll(2) {
        for v in 4 vector(4) {
          row[t, u*4 + v] = x[b*1024 + u*512 + t*4 + v]
          m max= row[t, u*4 + v]
        }
      }
    }
    acc s: f32 = add
    for t1 in 128 thread(128) {
      for u1 in 8 unroll(8) {
        e: f32 = row[t1, u1] - m
        row[t1, u1] = e * e
        s add= row[t1, u1]
      }
    }
    for t2 in 128 thread(128) {
      for u2 in 2 unroll(2) {
        for v2 in 4 vector(4) {
          out[b*1024 + u2*512 + t2*4 + v2] = row[t2, u2*4 + v2] / s
        }
      }
    }
  }
}""",
    "layernorm": """kernel layernorm(x: bf16[3072], w: bf16[768], out: bf16[3072], mean: f32[4]) {
  for b in 4 block {
    alloc row: f32[128, 8] @local
    acc s: f32 = add
    acc q: f32 = add
    for t in 96 thread(128) {
      for v in 8 vector(8) {
        a: f32 = f32(x[b*768 + t*8 + v])
        row[t, v] = a
        s add= a
        q add= a * a
      }
    }
    mu: f32 = s / 768.0
    scale: f32 = 1.0 / sqrt(q / 768.0 - mu * mu + 0.00001)
    for t1 in 96 thread(128) {
      for v1 in 8 vector(8) {
        out[b*768 + t1*8 + v1] = bf16((row[t1, v1] - mu) * scale * f32(w[t1*8 + v1]))
      }
    }
    mean[b] = mu
  }
}""",
    "warp_rows": """kernel warp_rows(x: f32[1224], out: f32[24], best: i64[24]) {
  for b in 3 block {
    for r in 8 thread(8, y) {
      acc s: f32 = add
      acc w: f32, at: i64 = argmax
      for l in 32 thread(32) {
        for k in -(l + 12)//32 + 2 {
          s add= x[b*408 + r*51 + l + k*32]
          w, at argmax= x[b*408 + r*51 + l + k*32], idx(l + k*32)
        }
      }
      out[b*8 + r] = s
      best[b*8 + r] = at
    }
  }
}""",
    "clamped_rows": """kernel clamped_rows(x: f32[510], out: f32[17], most: i32[17]) {
  for b in 5 block {
    for r in min(4, -b*4 + 17) thread(4, y) {
      acc s: f32 = add
      acc m: i32 = min
      for l in 30 thread(64) {
        s add= x[b*120 + r*30 + l]
        m min= i32(x[b*120 + r*30 + l] * 100.0)
      }
      out[b*4 + r] = s
      most[b*4 + r] = m
    }
  }
}""",
    "column_sum": """kernel column_sum(x: f32[65536], out: f32[256]) {
  for b in 2 block {
    for t in 32 thread(32) {
      alloc a: f32[4] @local = add
      for r in 8 thread(8, y) {
        for k in 32 {
          for v in 4 vector(4) {
            a[v] add= x[k*2048 + r*256 + b*128 + t*4 + v]
          }
        }
      }
      for v1 in 4 vector(4) {
        out[b*128 + t*4 + v1] = a[v1]
      }
    }
  }
}""",
    "narrow_columns": """kernel narrow_columns(x: f64[8192], out: f64[8], top: i64[8]) {
  for t in 8 thread(8) {
    acc s: f64 = add
    acc m: i64 = max
    for r in 64 thread(64, y) {
      for k in 16 {
        s add= x[k*512 + r*8 + t]
        m max= i64(x[k*512 + r*8 + t] * 1000.0:f64)
      }
    }
    out[t] = s
    top[t] = m
  }
}""",
    "block_sum": """kernel block_sum(x: i32[2000], out: i32[2], any: bool[2], narrow: u8[2]) {
  for b in 2 block {
    acc s: i32 = add
    acc o: bool = or
    acc n: u8 = max
    s add= 7:i32
    for r in 4 thread(4, y) {
      for l in 64 thread(64) {
        for k in -(r*64 + l + 24)//256 + 4 {
          s add= x[b*1000 + k*256 + r*64 + l]
          o or= x[b*1000 + k*256 + r*64 + l] > 100:i32
          n max= u8(x[b*1000 + k*256 + r*64 + l])
        }
      }
    }
    out[b] = s
    any[b] = o
    narrow[b] = n
  }
}""",
    "transpose": """kernel transpose(x: f32[8192], out: f32[8192]) {
  for i in 2 block {
    for j in 4 block {
      alloc tile: f32[32, 32 : 33, 1] @shared
      for r in 8 thread(8, y) {
        for c in 32 thread(32) {
          for k in 4 unroll(4) {
            tile[k*8 + r, c] = x[i*4096 + k*1024 + r*128 + j*32 + c]
          }
        }
      }
      barrier
      for r1 in 8 thread(8, y) {
        for c1 in 32 thread(32) {
          for k1 in 4 unroll(4) {
            out[j*2048 + k1*512 + r1*64 + i*32 + c1] = tile[c1, k1*8 + r1]
          }
        }
      }
    }
  }
}""",
    "big_tile": """kernel big_tile(x: f32[16384], out: f32[16384]) {
  alloc tile: f32[16384] @shared
  for k in 16 {
    for t in 1024 thread(1024) {
      tile[k*1024 + t] = x[k*1024 + t]
    }
  }
  barrier
  for k1 in 16 {
    for t1 in 1024 thread(1024) {
      out[k1*1024 + t1] = tile[-k1*1024 - t1 + 16383]
    }
  }
}""",
    "loop_of_rows": """kernel loop_of_rows(x: f32[12000], out: f32[12]) {
  for b in 3 block {
    for i in 4 {
      acc s: f32 = add
      for t in 128 thread(128) {
        for k in -(t + 24)//128 + 8 {
          s add= x[b*4000 + i*1000 + k*128 + t]
        }
      }
      acc q: f32 = add
      for t1 in 128 thread(128) {
        for k1 in -(t1 + 24)//128 + 8 {
          d: f32 = x[b*4000 + i*1000 + k1*128 + t1] - s / 1000.0
          q add= d * d
        }
      }
      out[b*4 + i] = q
    }
  }
}""",
    "scatter_add": """kernel scatter_add(at: i64[4096], x: f32[4096], xh: bf16[4096], out: f32[100], n: i64[100], h: bf16[100],
    hi: f32[100], o: bool[100], b8: i8[100], d: f64[100], p: i32[100]) {
  for b in 16 block {
    for t in 256 thread(256) {
      i: i64 = check_index(at[b*256 + t], 100, true)
      out[i] add= x[b*256 + t]
      n[i] add= 1
      h[i] add= xh[b*256 + t]
      hi[i] max= x[b*256 + t]
      o[i] or= x[b*256 + t] > 2.0
      b8[i] max= i8(x[b*256 + t])
      d[i] min= f64(x[b*256 + t])
      p[i] mul= 3:i32
    }
  }
}""",
    "gather": """kernel gather(at: i64[1024], table: f16[64000], out: f16[65536]) {
  for b in 64 block {
    for r in 16 thread(16, y) {
      for c in 8 thread(8) {
        i: i64 = check_index(at[b*16 + r], 1000, true)
        for v in 8 vector(8) {
          out[b*1024 + r*64 + c*8 + v] = table[i*64 + c*8 + v]
        }
      }
    }
  }
}""",
    "masked": """kernel masked(x: f32[1000], y: bf16[1000], out: f32[1064], o2: bf16[1064]) {
  for b in 2 block {
    for t in 67 thread(128) {
      for v in 8 vector(8) {
        k: i64 = idx(b*536 + t*8 + v)
        out[b*536 + t*8 + v if k < 1064] = x[b*536 + t*8 + v - 32 if (k >= 32) & (k < 1032)] + 1.0
        o2[b*536 + t*8 + v if k < 1064] = y[b*536 + t*8 + v - 3 if (k >= 3) & (k < 1003)]
      }
    }
  }
}""",
    "dynamic": """kernel dynamic(n: size 1.., m: size 1.., x: f32[n*m], out: f32[n], y: f32[n*m]) {
  for b in n block {
    acc s: f32 = add
    for t in 64 thread(64) {
      for k in (m - t + 63)//64 {
        s add= x[b*m + k*64 + t]
      }
    }
    out[b] = s
    for t1 in min(64, (m + 3)//4) thread(64) {
      for k1 in ((m + 3)//4 - t1 + 63)//64 {
        for v in min(4, -k1*256 - t1*4 + m) vector(4) {
          y[b*m + k1*256 + t1*4 + v] = x[b*m + k1*256 + t1*4 + v] - s
        }
      }
    }
  }
}""",
    "strips": """kernel strips(x: f32[40000], out: f32[40]) {
  for b in 40 block {
    acc s: f32 = add
    for t in 10 thread(16) {
      for v in 100 vector(8) {
        s add= x[b*1000 + t*100 + v]
      }
    }
    out[b] = s
  }
}""",
    "scan": """kernel scan(x: f32[4096], out: f32[4096], tot: i32[64]) {
  for t in 64 thread(64) {
    acc s: f32 = add
    for v in 64 vector(4) {
      s add= x[t*64 + v]
      out[t*64 + v] = s
    }
    acc n: i32 = add
    for w in 64 vector(8) {
      n add= 1:i32 if x[t*64 + w] > 0.0
    }
    tot[t] = n
  }
}""",
    "histogram": """kernel histogram(x: u8[8192], out: i32[256]) {
  for b in 4 block {
    alloc h: i32[256] @shared = add
    for t in 128 thread(128) {
      for v in 16 vector(16) {
        i: i64 = i64(x[b*2048 + t*16 + v])
        h[i] add= 1:i32
      }
    }
    barrier
    for t1 in 128 thread(128) {
      for k in 2 {
        out[k*128 + t1] add= h[k*128 + t1]
      }
    }
  }
}""",
}


def _ops(dtype: DType) -> Case:
    """Every op of the table that is no matter of its own, on lanes and one by one, in one kernel."""
    lines, outputs = [], {}
    for name, row in OPS.items():
        alone = row.takes is not None or name in MATHS | APPROXIMATE or name in (
            "cast",
            "bitcast",
            "check_index",
            "ldexp",
            "mad",
            "fma",
            "mulhi",
            "check_nonzero",
        )
        if dtype.kind not in row.kinds or alone:
            continue
        args = ["p[@]", "q[@]"][: row.arity] if row.rule != "select" else ["c[@]", "p[@]", "q[@]"]
        if name in ("shl", "shr"):
            args = ["p[@]", f"q[@] & 63:{dtype}"]
        outputs[f"y_{name}"] = "bool" if row.rule == "bool" else str(dtype)
        lines.append(f"y_{name}[@] = {name}({', '.join(args)})")
    if dtype.kind == "u" and dtype.bits >= 32:
        outputs["y_mulhi"] = str(dtype)
        lines.append("y_mulhi[@] = mulhi(p[@], q[@])")
    if dtype.kind in "iu":
        outputs["y_nonzero"] = str(dtype)
        lines.append("y_nonzero[@] = truncdiv(p[@], check_nonzero(q[@], q[@] != q[@]))")
        for number in (1, 2, 7, 100, *((-1, -5) if dtype.kind == "i" else ())):
            for name in ("floordiv", "truncdiv", "floormod", "truncmod"):
                outputs[f"y_{name}{number}".replace("-", "m")] = str(dtype)
                lines.append(f"y_{name}{number}".replace("-", "m") + f"[@] = {name}(p[@], {number}:{dtype})")
    if dtype.kind == "f":
        outputs |= {"y_fma": str(dtype), "y_ldexp": str(dtype)}
        lines.append("y_fma[@] = fma(p[@], q[@], p[@])")
        lines.append("y_ldexp[@] = ldexp(p[@], select(q[@] == q[@], round(q[@]), 1.0:" + f"{dtype}))")
    return Case(
        _elementwise(f"ops_{dtype}", lines, outputs, {"p": dtype, "q": dtype, "c": DTYPES["bool"]}),
        special=True,
    )


def _casts(dtype: DType) -> Case:
    outputs = {f"y_{d}": str(d) for d in DTYPES.values() if d.kind in "biuf" and d != dtype}
    lines = [f"y_{d}[@] = {d}(p[@])" for d in outputs.values()]
    if dtype.kind != "b":
        for d in DTYPES.values():
            if d.kind in "iuf" and d.bits == dtype.bits and d != dtype:
                outputs[f"z_{d}"] = str(d)
                lines.append(f"z_{d}[@] = bitcast:{d}(p[@])")
    return Case(_elementwise(f"casts_{dtype}", lines, outputs, {"p": dtype}), small=True)


def _elementwise(
    name: str, lines: list[str], outputs: Mapping[str, str], inputs: Mapping[str, DType], lanes: int = 4
) -> str:
    """``lines`` (with @ for the index) for COUNT elements: lanes, and what remains one by one."""
    params = [f"{n}: {t}[{COUNT}]" for n, t in (*inputs.items(), *outputs.items())]
    block, threads = 64 * lanes, -(-COUNT // lanes)
    body = "\n".join("        " + line.replace("@", f"b*{block} + t*{lanes} + v") for line in lines)
    return f"""kernel {name}({", ".join(params)}) {{
  for b in {-(-COUNT // block)} block {{
    for t in min(64, -b*64 + {threads}) thread(64) {{
      for v in min({lanes}, -b*{block} - t*{lanes} + {COUNT}) vector({lanes}) {{
{body}
      }}
    }}
  }}
}}"""


def _maths(name: str, of: str = "f32") -> Case:
    row, dtype = OPS[name], DTYPES[of]
    args = ["p[@]", "q[@]"][: row.arity]
    line = f"y[@] = {name}({', '.join(args)})"
    inputs = {"p": dtype, "q": dtype} if row.arity > 1 else {"p": dtype}
    text = _elementwise(f"maths_{name}_{of}", [line], {"y": of}, inputs, 128 // dtype.bits)
    # a GPU's own 2**x and 1/x are a few units in the last place off what the interpreter takes them for
    return Case(text, maths=True, special=True, tolerance=APPROXIMATED.get(name, 0.0) if of == "f32" else 0.0)


APPROXIMATED = dict.fromkeys(("exp", "sigmoid", "erf", "tanh"), 1e-6)
APPROXIMATED |= dict.fromkeys(("near_exp", "near_sigmoid", "near_erfc"), 2e-6)


NUMBERS = [t for t in DTYPES.values() if t.kind in "biuf"]
CASES: dict[str, Case] = {name: Case(text) for name, text in KERNELS.items()}
for _name, _tolerance in (
    ("softmax", 1e-5), ("layernorm", 0.02), ("warp_rows", 1e-5), ("clamped_rows", 1e-5), ("column_sum", 1e-4),
    ("clamped_columns", 1e-5), ("small_square", 1e-5),
    ("narrow_columns", 1e-12), ("conditions", 1e-5),
    ("shared_atomics", 1e-4), ("halves", 0.3), ("loop_of_rows", 1e-4), ("strips", 1e-4), ("scan", 1e-5),
):  # fmt: skip
    CASES[_name] = Case(KERNELS[_name], tolerance=_tolerance)
# forty numbers of size one added up in bf16, in any order
CASES["scatter_add"] = Case(KERNELS["scatter_add"], below={"at": 100}, tolerance=0.6)
CASES["own_minima"] = Case(KERNELS["own_minima"], small=True)
CASES["gather"] = Case(KERNELS["gather"], below={"at": 1000}, special=True)
CASES["dynamic"] = Case(
    KERNELS["dynamic"], ({"n": 3, "m": 7}, {"n": 2, "m": 1000}, {"n": 1, "m": 259}), tolerance=1e-4
)
CASES["block_sum"] = Case(KERNELS["block_sum"], small=True)
CASES |= {
    f"roots_{t}": Case(
        _elementwise(f"roots_{t}", ["y[@] = rsqrt(abs(p[@]))"], {"y": t}, {"p": DTYPES[t]}),
        special=True,
        tolerance=1e-6,
    )
    for t in ("f32", "f64")
}
CASES |= {f"ops_{t}": _ops(t) for t in NUMBERS if t.bits != 16 or t.kind != "f"}
CASES |= {f"maths_{name}": _maths(name) for name in sorted(MATHS)}
CASES |= {f"maths_{name}_f64": _maths(name, "f64") for name in sorted(maths.DOUBLE | maths.DOUBLE_FUSED.keys())}
CASES |= {f"casts_{t}": _casts(t) for t in NUMBERS}
CASES |= {
    name: Case(text, tolerance=TOLERANCES.get(name, 0.0), special="special" in name, small="small" in name)
    for name, text in SCANS.items()
}
CASES["scan_dynamic"] = Case(
    SCANS["scan_dynamic"], ({"n": 1}, {"n": 63}, {"n": 64}, {"n": 65}, {"n": 200}), tolerance=1e-5
)
