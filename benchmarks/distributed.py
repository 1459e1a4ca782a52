"""Training and collectives over several processes: lowc beside eager and Inductor.

    python -m benchmarks.distributed [--backend nccl|gloo] [--ranks 2] [--sides eager,lowc,inductor] [--out benchmarks/results]

Starts one process for each rank (NCCL: for each GPU).  Parts, each of which all ranks do together (``distributed_ranks.py``):

    collectives   tests/distributed/cases.py; kernels on the rank's own device; one cache folder; CUDA graphs with a collective
    tp, fsdp, ddp 50 training steps with each side, their losses beside eager's, and steps a second, sides in turn

Ranks write what they find as they go.  A part that fails or takes too long ends the ranks, and the rest is done by new ones; at
``--limit`` seconds all ends, and what is there is written to OUT/NAME.json and .md.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import table

PARTS = ("collectives", "tp", "fsdp", "ddp")
PART_LIMIT = 70  # seconds
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    given.add_argument("--ranks", type=int, default=0, help="all GPUs, or 2 with gloo")
    given.add_argument("--sides", default="eager,lowc,inductor")
    given.add_argument("--parts", default=",".join(PARTS))
    given.add_argument("--steps", type=int, default=50)
    given.add_argument("--limit", type=float, default=140, help="seconds for all")
    given.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given.add_argument("--name", default="", help="of the results; distributed_BACKEND")
    args = given.parse_args()
    ranks = args.ranks or _gpus(args.backend)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        rows = run_parts(args, ranks, Path(scratch), start + args.limit)
    results = {"backend": args.backend, "ranks": ranks, "seconds": round(time.monotonic() - start, 1), "rows": rows}
    args.out.mkdir(parents=True, exist_ok=True)
    name = args.name or f"distributed_{args.backend}"
    (args.out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    text = markdown(results)
    (args.out / f"{name}.md").write_text(text)
    print(text, flush=True)
    if not passed(rows, args.parts.split(",")):
        sys.exit(1)


def _gpus(backend: str) -> int:
    if backend == "gloo":
        return 2
    import torch

    return torch.cuda.device_count()


# ---------------------------------------------------------------- processes


def run_parts(args: argparse.Namespace, ranks: int, scratch: Path, deadline: float) -> list[dict[str, Any]]:
    """What rank 0 found, and the errors of all; a part that breaks off has an error and is not tried again."""
    rows: list[dict[str, Any]] = []
    left = args.parts.split(",")
    turn = 0
    while left and time.monotonic() < deadline:
        turn += 1
        folder = scratch / f"turn{turn}"
        folder.mkdir()
        reason = _run(args, ranks, left, scratch, folder, deadline)
        found = [json.loads(line) for file in sorted(folder.glob("rank*.jsonl")) for line in file.read_text().splitlines()]
        rows += [row for row in found if row["kind"] not in ("begin", "end")]
        done = [row["part"] for row in found if row["kind"] == "end" and row["rank"] == 0]
        left = [part for part in left if part not in done]
        if not left or not reason:
            break
        output = (folder / "rank0.log").read_text()[-3000:]
        for rank in range(1, ranks):
            output += f"\n--- rank {rank}\n" + (folder / f"rank{rank}.log").read_text()[-2000:]
        print(f"part {left[0]} broke off: {reason}\n{output}", flush=True)
        rows.append({"kind": "error", "part": left[0], "rank": -1, "text": reason})
        left = left[1:]
    rows += [{"kind": "error", "part": part, "rank": -1, "text": "no time was left"} for part in left]
    return rows


def _run(args: argparse.Namespace, ranks: int, parts: list[str], scratch: Path, folder: Path, deadline: float) -> str:
    """One set of processes; why it ended early, or "" if it did all ``parts``."""
    children: list[subprocess.Popen[bytes]] = []
    environment = {
        **os.environ,
        "NCCL_NVLS_ENABLE": "0",  # NVLink multicast needs more of a machine than all give
        "LOWC_CACHE_DIR": str(scratch / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "ignore",
    }
    if args.backend == "gloo":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        for rank in range(ranks):
            command = [sys.executable, "-m", "benchmarks.distributed_ranks", args.backend, str(rank), str(ranks), str(folder)]
            command += [",".join(parts), args.sides, str(args.steps), str(deadline - time.monotonic())]
            with open(folder / f"rank{rank}.log", "wb") as log:
                children.append(
                    subprocess.Popen(
                        command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                    )
                )
        return _watch(children, folder, deadline)
    finally:
        for child in children:
            _end(child)


def _watch(children: list[subprocess.Popen[bytes]], folder: Path, deadline: float) -> str:
    """Waits for all; why they must be ended, or ""."""
    size, since = 0, time.monotonic()
    while True:
        codes = [child.poll() for child in children]
        if all(code == 0 for code in codes):
            return ""
        for rank, code in enumerate(codes):
            if code:
                return f"rank {rank} ended with code {code}"
        now = time.monotonic()
        written = sum(file.stat().st_size for file in folder.glob("rank*.jsonl"))
        if written != size:
            size, since = written, now
        if now > deadline:
            return "no time was left"
        if now - since > PART_LIMIT:
            return f"nothing happened for {PART_LIMIT} s"
        time.sleep(0.1)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a rank and the processes that it has started (Inductor's)."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait(timeout=10)


# ---------------------------------------------------------------- results


def passed(rows: list[dict[str, Any]], parts: list[str]) -> bool:
    """Whether nothing failed and every part has said something."""
    return not any(row["kind"] == "error" or not row.get("ok", True) for row in rows) and set(parts) <= {r["part"] for r in rows}


def markdown(results: dict[str, Any]) -> str:
    rows = results["rows"]
    machine = next((r["text"] for r in rows if r["kind"] == "machine"), "")
    text = f"# Several ranks, {results['backend']}\n\n{results['ranks']} ranks; {machine}; {results['seconds']} s in all.\n\n"
    timed = {(r["part"], r["side"]) for r in rows if r["kind"] == "training"}
    training = [r for r in rows if r["kind"] == "training" or (r["kind"] == "trained" and (r["part"], r["side"]) not in timed)]
    training = [r for r in training if r["rank"] == 0]
    head = ["part", "side", "first loss", "last loss", "differs from eager", "first step, s", "ms a step", "eager / it", "graphs"]
    lines: list[list[str]] = []
    for row in training:
        eager = next((r for r in training if r["part"] == row["part"] and r["side"] == "eager"), row)
        times = [f"{row['ms']:.2f}", f"{eager['ms'] / row['ms']:.2f}"] if "ms" in row and "ms" in eager else ["", ""]
        numbers = [f"{row['losses'][0]:.4f}", f"{row['losses'][-1]:.4f}", f"{row['difference']:.1e}", f"{row['first_s']:.1f}"]
        lines.append([row["part"], row["side"], *numbers, *times, str(row["graphs"])])
    if lines:
        text += table(head, lines) + "\n"
    checks = [r for r in rows if r["kind"] == "check"]
    named = dict.fromkeys(r["name"] for r in checks)
    lines = []
    for name in named:
        of = [r for r in checks if r["name"] == name]
        bad = [f"rank {r['rank']}: {r['text']}" for r in of if not r["ok"]]
        notes = dict.fromkeys(r["text"] for r in of if r["ok"] and r["text"])
        said = "; ".join(bad or notes).replace("|", "\\|").replace("\n", " ")[:300]
        lines.append([name, "**wrong**" if bad else "right", said])
    if lines:
        text += table(["check, on every rank", "", ""], lines) + "\n"
    for row in rows:
        if row["kind"] == "note" and row["rank"] == 0:
            text += f"* {row['part']}: {row['text'].strip().splitlines()[0]}\n"
        if row["kind"] == "error":
            text += f"* {row['part']}: **{row['text'].strip().splitlines()[-1][:300]}**\n"
    return text


if __name__ == "__main__":
    main()
