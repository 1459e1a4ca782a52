"""The command line; see ``python -m tests.property.contractions --help``."""

import argparse
import os
import subprocess
import sys
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.property.contractions import attentions, convolutions, flex, products
from tests.property.contractions.case import Case, Draw, results, wrong

CHUNK = 25  # seeds of one process
KINDS = ("product", "product", "integers", "attention", "attention", "convolution", "convolution", "flex")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m tests.property.contractions",
        description="Compares random products, attention and convolutions of lowc's own with float64, beside eager.",
    )
    p.add_argument("--count", type=int, default=500, help="how many (default: %(default)s)")
    p.add_argument("--start", type=int, default=0, help="the first seed (default: %(default)s)")
    p.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where they run (default: %(default)s)")
    p.add_argument("--only", default="", help="one kind: product, integers, attention, convolution, flex")
    p.add_argument("--seconds", type=float, default=1e9, help="begin no more after so many (default: no limit)")
    p.add_argument("--here", action="store_true", help="in this process, one line a seed")
    return p


def made(seed: int, only: str, cuda: bool) -> Case:
    """The program of ``seed``, of one kind if that is said."""
    draw = Draw(seed, cuda)
    kind = only or draw.one(*KINDS)
    makers = {
        "product": products.product, "integers": products.integers,
        "attention": attentions.attention, "convolution": convolutions.convolution, "flex": flex.flex,
    }  # fmt: skip
    return makers[kind](draw)


def here(given: argparse.Namespace) -> None:
    """A line for each seed: "ok", "skip" where eager refuses, "bad"; begun seeds are named first, for a process that dies."""
    warnings.filterwarnings("ignore")
    torch._dynamo.config.recompile_limit = 1000
    device = torch.device(given.device)
    torch.set_num_threads(1 if given.device == "cuda" else 2)
    for seed in range(given.start, given.start + given.count):
        case = made(seed, given.only, given.device == "cuda")
        print(f"begin {seed} {case.text}", flush=True)
        try:
            torch.manual_seed(seed)
            results(case.function, case.args(device), case.gradients)
        except (RuntimeError, NotImplementedError) as refused:
            print(f"skip {seed} {type(refused).__name__} {str(refused).splitlines()[0][:100]}", flush=True)
            continue
        try:
            said = wrong(case, device, seed)
        except Exception as problem:
            said = f"{type(problem).__name__}: {str(problem).strip()[:400]} | {traceback.format_exc().splitlines()[-2]}"
        print(f"bad {seed} {said} | {case.text}".replace("\n", " ") if said else f"ok {seed}", flush=True)


def chunk(given: argparse.Namespace, start: int, count: int, until: float) -> list[str]:
    """Lines of seeds; one more if the process ended before it was done."""
    if time.monotonic() > until:
        return []
    command = [sys.executable, "-m", "tests.property.contractions", "--here", "--start", str(start), "--count", str(count)]
    command += ["--device", given.device, *(["--only", given.only] if given.only else [])]
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60 + 20 * count, env=env)
        out, code = ran.stdout, ran.returncode
    except subprocess.TimeoutExpired as late:
        out, code = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else late.stdout or "", "timeout"
    lines = out.splitlines()
    if code != 0:
        begun = [line for line in lines if line.startswith("begin")]
        said = "" if isinstance(code, str) else ran.stderr.strip()[-200:].replace("\n", " ")
        lines.append(f"bad {begun[-1][6:] if begun else start}: the process ended with {code} {said}")
    return lines


def main() -> int:
    """1 if something is wrong."""
    given = parser().parse_args()
    if given.here:
        here(given)
        return 0
    began = time.monotonic()
    starts = range(given.start, given.start + given.count, CHUNK)
    counts = {"ok": 0, "skip": 0, "bad": 0}
    with ThreadPoolExecutor(given.jobs) as pool:
        each = [
            pool.submit(chunk, given, s, min(CHUNK, given.start + given.count - s), began + given.seconds) for s in starts
        ]
        for future in each:
            for line in future.result():
                word = line.split(" ", 1)[0]
                if word in counts:
                    counts[word] += 1
                if word == "bad":
                    print(line, flush=True)
    said = ", ".join(f"{n} {word}" for word, n in counts.items())
    print(f"{said} in {time.monotonic() - began:.0f} s")
    return 1 if counts["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())
