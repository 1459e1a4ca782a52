"""The results of ``benchmarks.run`` as Markdown tables."""

import math
from collections.abc import Iterable
from typing import Any

_ABOUT_STEADY = "Median time of a call; ratios above 1 mean that lowc is faster.\n\n"


def markdown(results: dict[str, Any]) -> str:
    parts = [f"# Benchmarks\n\n{', '.join(f'{k} {v}' for k, v in results['machine'].items())}\n"]
    for part, title in (("steady", "Steady state, f32"), ("models", "Models")):
        if part in results:
            parts.append(f"## {title}\n\n{_ABOUT_STEADY}{_steady(results[part])}")
    if "cold" in results:
        parts.append(
            f"## Cold start\n\nSeconds from the start of the process to the first result.\n\n{_cold(results['cold'])}"
        )
    if "overhead" in results:
        rows = [[name.removesuffix("_us"), _number(value)] for name, value in results["overhead"].items()]
        parts.append(
            f"## Call overhead\n\nA graph of three small kernels, µs a call.\n\n{table(['way', 'µs'], rows)}"
        )
    if "memory" in results:
        parts.append(
            "## Peak memory\n\nThe most that is resident during a step, in MB above what is between steps.\n\n"
            + _memory(results["memory"])
        )
    if "scaling" in results:
        parts.append(
            f"## Compile time\n\nA chain of different pointwise and norm layers.\n\n{_scaling(results['scaling'])}"
        )
    return "\n".join(parts)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _sides(part: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(side for row in part.values() for side in row if side != "error"))


def _steady(part: dict[str, Any]) -> str:
    sides = _sides(part)
    others = [side for side in sides if side != "lowc"] if "lowc" in sides else []
    ratios: dict[str, list[float]] = {side: [] for side in others}
    rows: list[list[str]] = []
    for name, row in part.items():
        if "error" in row:
            rows.append([name, row["error"].replace("|", "\\|")] + [""] * (len(sides) + len(others) - 1))
            continue
        times = [row[side]["median_ms"] if side in row else math.nan for side in sides]
        of = dict(zip(sides, times))
        compared = [of[side] / of["lowc"] for side in others]
        for side, ratio in zip(others, compared):
            ratios[side].append(ratio)
        rows.append([name, *map(_number, times), *(f"{ratio:.2f}" for ratio in compared)])
    if others:
        rows.append(
            ["geometric mean", *[""] * len(sides), *(f"{_mean(ratios[side]):.2f}" for side in others)]
        )
    return table(
        ["workload", *(f"{side}, ms" for side in sides), *(f"{side} / lowc" for side in others)], rows
    )


def _mean(values: list[float]) -> float:
    kept = [v for v in values if not math.isnan(v)]
    return math.exp(sum(map(math.log, kept)) / len(kept)) if kept else math.nan


def _cold(part: dict[str, Any]) -> str:
    sides = _sides(part)
    rows: list[list[str]] = []
    for name, row in part.items():
        totals = {side: row.get(side, {}).get("total", math.nan) for side in sides}
        floor = totals.get("aot_eager", math.nan)
        above = totals.get("lowc", math.nan) - floor
        sooner = (totals.get("inductor", math.nan) - 0) / totals.get("lowc", math.nan)
        rows.append([name, *(f"{totals[side]:.2f}" for side in sides), f"{above:+.2f}", f"{sooner:.1f}"])
    return table(["", *sides, "lowc above aot_eager", "inductor / lowc"], rows)


def _memory(part: dict[str, Any]) -> str:
    sides = _sides(part)
    rows = [
        [
            name,
            *(_number(row.get(side, {}).get("steps_mb", math.nan)) for side in sides),
            *(_number(_ratio(row, side)) for side in sides if side != "eager"),
        ]
        for name, row in part.items()
    ]
    ratios = [f"{side} / eager" for side in sides if side != "eager"]
    return table(["workload", *(f"{side}, MB" for side in sides), *ratios], rows)


def _ratio(row: dict[str, Any], side: str) -> float:
    """Of the peaks of ``side`` and eager."""
    eager = row.get("eager", {}).get("steps_mb", 0.0)
    return row.get(side, {}).get("steps_mb", math.nan) / eager if eager > 0 else math.nan


def _scaling(part: dict[str, Any]) -> str:
    rows = [
        [n, _number(row.get("lowc_s", math.nan)), _number(row.get("first_call_s", math.nan))]
        for n, row in part.items()
    ]
    if all("lowc_s" in part.get(n, {}) for n in ("200", "400")):
        ratio = [part["400"][k] / part["200"][k] for k in ("lowc_s", "first_call_s")]
        rows.append(["400 / 200", *(f"{r:.2f}" for r in ratio)])
    return table(["layers", "lowc alone, s", "first call, s"], rows)


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float | int) else str(value)
