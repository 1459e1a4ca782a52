"""Kernels @MACHINE for NVIDIA GPUs whose threads hold prefixes: the scans of ``kernels.CASES``."""

SCANS: dict[str, str] = {
    # whole runs of four lanes, two turns, f64 as cumsum of f32 is lowered
    "scan_rows": """kernel scan_rows(x: f32[3072], out: f32[3072], total: f32[3]) {
  for b in 3 block {
    acc s: f64 = add
    for o in 2 unroll(2) {
      for t in 128 thread(128) {
        for v in 4 vector(4) {
          a: f32 = x[b*1024 + o*512 + t*4 + v]
          s add= f64(a)
          out[b*1024 + o*512 + t*4 + v] = f32(s) + a
        }
      }
    }
    total[b] = f32(s)
  }
}""",
    # one element a thread, the last turn cut short, a loop in the code
    "scan_tail": """kernel scan_tail(x: f32[2000], out: f32[2000], total: f32[2]) {
  for b in 2 block {
    acc s: f32 = add
    for o in 16 {
      for t in min(64, -o*64 + 1000) thread(64) {
        s add= x[b*1000 + o*64 + t]
        out[b*1000 + o*64 + t] = s
      }
    }
    total[b] = s
  }
}""",
    "scan_dynamic": """kernel scan_dynamic(n: size 1.., x: f32[n], out: f32[n], total: f32[1]) {
  acc s: f32 = add
  for o in (n + 63)//64 {
    for t in min(16, (n - o*64 + 3)//4) thread(16) {
      for v in min(4, n - o*64 - t*4) vector(4) {
        a: f32 = x[o*64 + t*4 + v]
        s add= a
        out[o*64 + t*4 + v] = s - a
      }
    }
  }
  total[0] = s
}""",
    # more threads than elements; what is accumulated before; a mask; i64, i32 and u8
    "scan_short_small": """kernel scan_short_small(x: i32[90], out: i64[90], count: i32[90], mul: u8[90], last: i64[3]) {
  for b in 3 block {
    acc s: i64 = add
    acc n: i32 = add
    acc p: u8 = mul
    s add= idx(b) + 5
    for t in 30 thread(128) {
      s add= i64(x[b*30 + t])
      n add= 1:i32 if x[b*30 + t] > 0:i32
      p mul= u8(x[b*30 + t]) | 1:u8
      out[b*30 + t] = s
      count[b*30 + t] = n
      mul[b*30 + t] = p
    }
    s add= 1
    last[b] = s
  }
}""",
    # NaN, infinities and zeros of either sign
    "scan_extremes_special": """kernel scan_extremes_special(x: f32[512], max0: f32[512], min0: f64[512], maxs: f32[2],
    mins: f64[2]) {
  for b in 2 block {
    acc m: f32 = max
    acc l: f64 = min
    for t in 64 thread(64) {
      for v in 4 vector(4) {
        m max= x[b*256 + t*4 + v]
        max0[b*256 + t*4 + v] = m
        l min= f64(x[b*256 + t*4 + v])
        min0[b*256 + t*4 + v] = l
      }
    }
    maxs[b] = m
    mins[b] = l
  }
}""",
    # sums of NaN and of zeros: those that start with -0.0 are 0.0
    "scan_sums_special": """kernel scan_sums_special(x: f32[512], out: f32[512], zeros: f32[512]) {
  for b in 16 block {
    acc s: f32 = add
    acc z: f32 = add
    for t in 8 thread(32) {
      for v in 4 vector(4) {
        a: f32 = x[b*32 + t*4 + v]
        s add= select(abs(a) > 3.0e30, 0.0, round(a))
        z add= select(a == a, -0.0, a)
        out[b*32 + t*4 + v] = s
        zeros[b*32 + t*4 + v] = z
      }
    }
  }
}""",
    "scan_logic_small": """kernel scan_logic_small(x: i32[1024], any: bool[1024], all: bool[1024], bits: u32[1024],
    ands: i64[1024]) {
  for b in 2 block {
    acc o: bool = or
    acc a: bool = and
    acc u: u32 = or
    acc i: i64 = and
    for t in 256 thread(256) {
      for v in 2 vector(2) {
        o or= x[b*512 + t*2 + v] > 98:i32
        a and= x[b*512 + t*2 + v] < 98:i32
        u or= u32(1 << i64(x[b*512 + t*2 + v] & 31:i32))
        i and= idx(t*2 + v) | -512
        any[b*512 + t*2 + v] = o
        all[b*512 + t*2 + v] = a
        bits[b*512 + t*2 + v] = u
        ands[b*512 + t*2 + v] = i
      }
    }
  }
}""",
    "scan_best_special": """kernel scan_best_special(x: f32[1200], max_x: f32[1200], at: i64[1200], y: i16[1200],
    min_y: i16[1200], bt: i64[1200]) {
  for b in 4 block {
    acc m: f32, i: i64 = argmax
    acc l: i16, j: i64 = argmin
    for o in 2 {
      for t in min(64, -o*64 + 75) thread(64) {
        for v in 4 vector(4) {
          m, i argmax= x[b*300 + o*256 + t*4 + v], idx(o*256 + t*4 + v)
          l, j argmin= y[b*300 + o*256 + t*4 + v] & 255:i16, idx(o*256 + t*4 + v)
          max_x[b*300 + o*256 + t*4 + v] = m
          at[b*300 + o*256 + t*4 + v] = i
          min_y[b*300 + o*256 + t*4 + v] = l
          bt[b*300 + o*256 + t*4 + v] = j
        }
      }
    }
  }
}""",
    # a scan and ordinary reductions in one loop, then a map over a row that was held; bf16 in and out
    "scan_and_sums": """kernel scan_and_sums(x: bf16[3072], out: bf16[3072], sums: f32[3], most: f32[3]) {
  for b in 3 block {
    alloc row: f32[128, 8] @local
    acc s: f32 = add
    acc q: f32 = add
    acc m: f32 = max
    for t in 128 thread(128) {
      for v in 8 vector(8) {
        a: f32 = f32(x[b*1024 + t*8 + v])
        q add= a * a
        s add= a
        row[t, v] = s
        m max= abs(s)
      }
    }
    for t1 in 128 thread(128) {
      for v1 in 8 vector(8) {
        out[b*1024 + t1*8 + v1] = bf16(row[t1, v1] / (m + 1.0))
      }
    }
    sums[b] = q
    most[b] = m
  }
}""",
    # a warp a row, the last rows missing; a condition and a serial loop behind the update; a let outside of the lanes
    "scan_warps": """kernel scan_warps(x: f32[1152], out: f32[1152], part: f32[1152], row: f32[9]) {
  for b in 3 block {
    for r in min(4, -b*4 + 9) thread(4, y) {
      acc s: f32 = add
      acc e: f32 = add
      for t in 32 thread(32) {
        w: f32 = f32(idx(t % 4)) + 1.0
        for v in 4 vector(4) {
          s add= x[b*512 + r*128 + t*4 + v] * w
          d: f32 = s * w
          out[b*512 + r*128 + t*4 + v] = d
          e add= d
          if idx(r) > 1 {
            part[b*512 + r*128 + t*4 + v] = s + e
          }
        }
      }
      row[b*4 + r] = s
    }
  }
}""",
    # rows of 8 and of 128 threads beside one another
    "scan_narrow": """kernel scan_narrow(x: f32[64], out: f32[64], row: f32[8]) {
  for r in 7 thread(8, y) {
    acc s: f32 = add
    for t in 7 thread(8) {
      s add= x[r*8 + t]
      out[r*8 + t] = s
    }
    row[r] = s
  }
}""",
    "scan_wide": """kernel scan_wide(x: f64[512], out: f64[512], row: f64[4]) {
  for r in 3 thread(4, y) {
    acc s: f64 = add
    for k in 2 {
      for t in 64 thread(64) {
        s add= x[r*128 + k*64 + t]
        out[r*128 + k*64 + t] = s
      }
    }
    row[r] = s
  }
}""",
    # chunks, each from where the one before it ends
    "scan_chunks": """kernel scan_chunks(x: f32[3000], ends: f64[3], out: f32[3000]) {
  for c in 3 block {
    acc s: f64 = add
    s add= ends[c - 1 if idx(c) > 0] if idx(c) > 0
    for o in 2 unroll(2) {
      for t in min(128, -o*128 + 250) thread(128) {
        for v in 4 vector(4) {
          s add= f64(x[c*1000 + o*512 + t*4 + v])
          out[c*1000 + o*512 + t*4 + v] = f32(s)
        }
      }
    }
  }
}""",
    # updates at block level, which count once: before, between and after thread loops, in a loop and under a condition
    "block_updates_small": """kernel block_updates_small(x: i32[256], out: i32[2], most: i32[2], run: i32[256], last: i32[2]) {
  for b in 2 block {
    acc s: i32 = add
    acc m: i32 = max
    acc r: i32 = add
    s add= 7:i32
    r add= 7:i32
    for k in 3 {
      s add= 1:i32 if idx(k) > 0
      if idx(k) > 1 {
        s add= 10:i32
        m max= 99:i32
        r add= 3:i32
      }
    }
    for t in 128 thread(128) {
      s add= x[b*128 + t]
      m max= x[b*128 + t]
    }
    for t1 in 128 thread(128) {
      r add= x[b*128 + t1]
      run[b*128 + t1] = r
    }
    s add= 100:i32
    r add= 50:i32
    out[b] = s
    most[b] = m
    last[b] = r
  }
}""",
    "scan_warps_of_1024": """kernel scan_warps_of_1024(x: i32[1024], out: i32[1024]) {
  acc s: i32 = add
  for t in 1024 thread(1024) {
    s add= x[t]
    out[t] = s
  }
}""",
}

TOLERANCES: dict[str, float] = {
    "scan_rows": 1e-6,
    "scan_chunks": 1e-6,
    "scan_tail": 1e-4,
    "scan_sums_special": 1e-5,
    "scan_and_sums": 0.02,
    "scan_warps": 1e-2,
    "scan_narrow": 1e-5,
    "scan_wide": 1e-12,
}
