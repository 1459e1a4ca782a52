"""Kernels @MACHINE for NVIDIA GPUs as text: what the tests of this folder compile, interpret and, where a GPU is, run."""

KERNELS: dict[str, str] = {
    "map_f32": """kernel map_f32(x: f32[1000003], y: f32[1000003], out: f32[1000003]) {
  for b in 977 block {
    for t in 256 thread(256) {
      for v in min(4, -b*1024 - t*4 + 1000003) vector(4) {
        out[b*1024 + t*4 + v] = x[b*1024 + t*4 + v] * y[b*1024 + t*4 + v] + 1.0
      }
    }
  }
}""",
    "map_bf16": """kernel map_bf16(x: bf16[1048576], out: bf16[1048576]) {
  for b in 512 block {
    for t in 256 thread(256) {
      for v in 8 vector(8) {
        out[b*2048 + t*8 + v] = bf16(f32(x[b*2048 + t*8 + v]) * 2.0)
      }
    }
  }
}""",
    "softmax": """kernel softmax(x: f32[262144], out: f32[262144]) {
  for b in 256 block {
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
    "layernorm": """kernel layernorm(x: bf16[393216], w: bf16[768], out: bf16[393216], mean: f32[512]) {
  for b in 512 block {
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
    "warp_rows": """kernel warp_rows(x: f32[51000], out: f32[1000], best: i64[1000]) {
  for b in 125 block {
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
    "clamped_rows": """kernel clamped_rows(x: f32[2310], out: f32[77], most: i32[77]) {
  for b in 20 block {
    for r in min(4, -b*4 + 77) thread(4, y) {
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
    "block_sum": """kernel block_sum(x: i32[5000], out: i32[5], any: bool[5], narrow: u8[5]) {
  for b in 5 block {
    acc s: i32 = add
    acc o: bool = or
    acc n: u8 = max
    s add= 7
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
    "transpose": """kernel transpose(x: f32[1048576], out: f32[1048576]) {
  for i in 32 block {
    for j in 32 block {
      alloc tile: f32[32, 32 : 33, 1] @shared
      for r in 8 thread(8, y) {
        for c in 32 thread(32) {
          for k in 4 unroll(4) {
            tile[k*8 + r, c] = x[i*32768 + k*8192 + r*1024 + j*32 + c]
          }
        }
      }
      barrier
      for r1 in 8 thread(8, y) {
        for c1 in 32 thread(32) {
          for k1 in 4 unroll(4) {
            out[j*32768 + k1*8192 + r1*1024 + i*32 + c1] = tile[c1, k1*8 + r1]
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
    "loop_of_rows": """kernel loop_of_rows(x: f32[64000], out: f32[64]) {
  for b in 4 block {
    for i in 16 {
      acc s: f32 = add
      for t in 128 thread(128) {
        for k in -(t + 24)//128 + 8 {
          s add= x[b*16000 + i*1000 + k*128 + t]
        }
      }
      acc q: f32 = add
      for t1 in 128 thread(128) {
        for k1 in -(t1 + 24)//128 + 8 {
          d: f32 = x[b*16000 + i*1000 + k1*128 + t1] - s / 1000.0
          q add= d * d
        }
      }
      out[b*16 + i] = q
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
