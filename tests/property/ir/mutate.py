"""IR text to try: programs printed at every level, changed a little, or made of tokens alone."""

import random
import re
from functools import cache
from pathlib import Path

from lowc.ir.printer import print_module
from lowc.options import Options
from lowc.scheduler import pipeline
from tests.property.programs import random_module
from tests.property.test_passes import TARGETS

GOLDEN = sorted((Path(__file__).resolve().parent.parent.parent / "ir" / "golden").glob("*.lowc"))
TOKEN = re.compile(r'"[^"\n]*"|[^\W\d][\w.]*|\d+\.\d+(?:[eE][+-]?\d+)?|\d+|//|<<|>>|<=|>=|==|!=|\.\.|\n|[^\S\n]+|.')
NUMBERS = ("0", "1", "2", "3", "4", "7", "8", "16", "17", "31", "64", "255", "1024", "4294967296", "9223372036854775807", "1e300")
WORDS = tuple(
    "for if in acc alloc add max min mul and or sum parallel vector unroll serial block thread pipeline teams barrier select exp "
    "idx check_index check_nonzero cast truncdiv product fma launch extern input output temp return module kernel size none true "
    "false inf nan because from at workspace deterministic @LOOPS @SCHEDULED @BUFFERED @MACHINE @local @shared f32 f64 f16 bf16 "
    "i8 i32 i64 u8 bool + - * / % & | ^ ~ < <= == != ( ) [ ] { } : , = .. // x i0 k0 v0".split()
)


@cache
def golden() -> tuple[str, ...]:
    return tuple(path.read_text() for path in GOLDEN)


def text_of(seed: int) -> tuple[str, str]:
    """(what it is, the text): one program for each seed, the same each time."""
    rng = random.Random(f"ir {seed}")
    kind = rng.choices(("mutated", "mixed", "random", "plain"), (80, 8, 6, 6))[0]
    if kind == "random":
        return kind, " ".join(rng.choice(WORDS + NUMBERS) for _ in range(rng.randrange(60)))
    base = source(rng)
    if kind == "plain":
        return kind, base
    if kind == "mixed":
        return kind, mixed(rng, base, source(rng))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        base = mutated(rng, base)
    return kind, base


def source(rng: random.Random) -> str:
    """A program that is right, at some level, for some target."""
    if rng.random() < 0.2:
        return rng.choice(golden())
    module = random_module(rng.randrange(1 << 30), rng.randrange(1, 4)).module
    target = TARGETS[rng.choice(("avx512", "avx2", "sse2", "nvptx", "nvptx"))]
    rows = [row for row in pipeline.PASSES if row.only in ("", target.kind)]
    for row in rows[: rng.choice((0, 0, 1, 4, 9, 10, 11, len(rows), len(rows)))]:
        module = pipeline.apply(row, module, target, Options())
    return print_module(module)


def mutated(rng: random.Random, text: str) -> str:
    if rng.random() < 0.25:
        return _lines(rng, text)
    tokens = TOKEN.findall(text)
    solid = [n for n, t in enumerate(tokens) if t.strip()]
    if not solid:
        return text
    n = rng.choice(solid)
    how = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, *(8, 9, 10) * 4))
    if how == 0:
        del tokens[n]
    elif how == 1:
        tokens.insert(n, tokens[n] + " ")
    elif how == 2:
        other = rng.choice(solid)
        tokens[n], tokens[other] = tokens[other], tokens[n]
    elif how == 3:
        tokens[n] = rng.choice(WORDS)
    elif how == 4:
        digits = [k for k in solid if tokens[k].isdigit()]
        if digits:
            tokens[rng.choice(digits)] = rng.choice(NUMBERS)
    elif how == 5:  # a name for another of the same kind
        names = [k for k in solid if re.fullmatch(r"[a-z]\w*", tokens[k])]
        if names:
            tokens[rng.choice(names)] = tokens[rng.choice(names)]
    elif how == 6:
        other = rng.choice(solid)
        first, last = min(n, other), min(max(n, other), min(n, other) + 12)
        tokens[n:n] = [*tokens[first:last], " "]
    elif how == 7:
        tokens.insert(n, rng.choice(WORDS + NUMBERS) + " ")
    else:
        tokens = _alike(rng, tokens, how)
    return "".join(tokens)


ALIKE = (
    ("f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"),
    ("max", "min", "add", "mul"),
    ("exp", "log", "sin", "sqrt", "rsqrt", "tanh", "erf", "abs", "neg", "floor", "sigmoid", "round", "trunc", "log1p", "expm1"),
    ("+", "-", "*", "/"),
    ("<", "<=", "==", "!=", ">", ">="),
    ("vector(4)", "vector(8)", "unroll", "parallel", "serial", ""),
)


def _alike(rng: random.Random, tokens: list[str], how: int) -> list[str]:
    """A change that leaves many programs valid: a number, a type or an operation for another, everywhere or in one place."""
    if how == 8:
        found = [t for t in tokens if t.isdigit()]
        group = [rng.choice(NUMBERS[:12]), str(rng.randrange(40))]
    else:
        kinds = [g for g in ALIKE if any(t in g for t in tokens)]
        group = list(rng.choice(kinds)) if kinds else []
        found = [t for t in tokens if t in group]
    if not found:
        return tokens
    old, new = rng.choice(found), rng.choice(group)
    if how == 8 and rng.random() < 0.5:
        new = str(int(old) + rng.choice((-1, 1))).strip("-")
    places = [k for k, t in enumerate(tokens) if t == old]
    if how != 10 or rng.random() < 0.5:
        places = [rng.choice(places)] if how == 9 or rng.random() < 0.3 else places
    for k in places:
        tokens[k] = new
    return tokens


def _lines(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.randrange(4)
    if how == 0:
        del lines[a]
    elif how == 1:
        lines.insert(b, lines[a])
    elif how == 2:
        lines[a], lines[b] = lines[b], lines[a]
    else:
        lines[a : a + rng.randrange(1, 6)] = []
    return "\n".join(lines)


def mixed(rng: random.Random, a: str, b: str) -> str:
    """Lines of two programs, one after the other."""
    first, second = a.split("\n"), b.split("\n")
    return "\n".join(first[: rng.randrange(len(first))] + second[rng.randrange(len(second)) :])
