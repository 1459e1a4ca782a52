"""Results: a file of records, one line of JSON each; a table by op; docs/coverage.md."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.sweep.known import KNOWN, why_known
from tests.sweep.workers import BAD, Record

COLUMNS = ("lowered", "extern", "torch", "refused", "skipped", "inherited", "known", *BAD)


def read(path: Path) -> list[Record]:
    """The records in ``path``, none if there is no such file; a last line that was cut off is left out."""
    if not path.exists():
        return []
    records = {}
    for line in path.read_text().splitlines():
        try:
            raw = json.loads(line)
        except json.JSONDecodeError:
            continue
        raw |= {"statuses": Counter(raw["statuses"]), "externs": Counter(raw["externs"])}
        raw["failures"] = [tuple(f) for f in raw["failures"]]
        _forgive(raw)
        records[raw["key"]] = Record(**raw)
    return list(records.values())


def _forgive(raw: dict[str, Any]) -> None:
    """Counts as known what has become so since the record was written."""
    kept = []
    for number, variant, status, detail in raw["failures"]:
        if status in BAD and why_known(raw["key"].split("/")[0], variant, detail, raw.get("device", "cpu")) is not None:
            raw["statuses"][status] -= 1
            raw["statuses"]["known"] += 1
            status = "known"
        kept.append((number, variant, status, detail))
    raw["failures"] = kept


def append(path: Path, record: Record) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record.as_dict()) + "\n")


def by_op(records: Iterable[Record]) -> dict[str, Counter[str]]:
    """Samples of each status, for each op, all dtypes together."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[record.key.split("/")[0]] += record.statuses
    return dict(sorted(counts.items()))


def table(records: Iterable[Record], only_bad: bool = False) -> Table:
    """A row for each op, and the sum; with ``only_bad`` the ops that are wrong somewhere or fail."""
    counts = by_op(records)
    shown = Table("op", *COLUMNS, title="samples by what became of them")
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, found in counts.items():
        bad = any(found[s] for s in BAD)
        if bad or not only_bad:
            cells = [str(found[s] or "") for s in COLUMNS]
            shown.add_row(name, *cells, style="red" if bad else "")
    total = sum(counts.values(), Counter[str]())
    shown.add_section()
    shown.add_row(f"{len(counts)} ops", *(str(total[s]) for s in COLUMNS), style="bold")
    return shown


def failures(records: Iterable[Record]) -> list[str]:
    """One line for each failure that was kept."""
    return [
        f"{record.key} #{number}{' ' + variant if variant else ''}: {status}: {detail}"
        for record in records
        for number, variant, status, detail in record.failures
        if status in BAD
    ]


# ---------------------------------------------------------------- docs/coverage.md

HEAD = """# Coverage of torch's ops

Made by `python -m tests.sweep --out FILE --coverage docs/coverage.md`; what the words mean is said in `tests/sweep/trial.py`.

"""


def coverage(records: list[Record]) -> str:
    """The page: how many samples are lowered, run by ATen, or neither; each call of ATen and where it comes from."""
    counts = by_op(records)
    total = sum(counts.values(), Counter[str]())
    compiled = total["lowered"] + total["extern"]
    whole = sum(1 for c in counts.values() if c["lowered"] and not c["extern"])
    partly = sum(1 for c in counts.values() if c["lowered"] and c["extern"])
    lines = [
        HEAD,
        f"Over {len(counts)} ops of `op_db` and {sum(total.values())} samples (with their layouts and gradients, all CPU dtypes "
        f"that were run: {', '.join(_dtypes(records))}): {total['lowered']} of {compiled} that compile have kernels throughout, "
        f"{total['extern']} call ATen somewhere. {whole} ops never call ATen, {partly} do for some arguments. "
        f"{total['torch']} samples cannot be imported (sparse, subgraphs) and are run by torch, {total['refused']} AOTAutograd "
        f"refuses, {total['skipped']} eager refuses; {total['inherited']} differ from eager as AOTAutograd's graphs do without "
        f"lowc, "
        f"{total['known']} differ in a way that is understood (below), "
        f"{sum(total[s] for s in BAD)} otherwise.\n",
        *_by_dtype(records),
        "## Calls of ATen\n",
        "| ATen op | reason | ops of `op_db` |",
        "|---|---|---|",
    ]
    users: dict[str, set[str]] = defaultdict(set)
    for record in records:
        for extern in record.externs:
            users[extern].add(record.key.split("/")[0])
    for extern in sorted(users):
        target, _, reason = extern.partition(": ")
        lines.append(f"| `{target}` | {reason.replace('|', '/')} | {_some(sorted(users[extern]))} |")
    lines += ["", "## Known differences\n", "| ops | what | why |", "|---|---|---|"]
    lines += [f"| `{k.ops}` | {k.detail or 'anything'} | {k.reason} |" for k in KNOWN if k.device in ("", "cpu")]
    if failures(records):
        lines += ["", "## Not as in eager\n"]
        named: dict[tuple[str, str], Any] = {}
        for record in records:
            for _, variant, status, detail in record.failures:
                if status in BAD:
                    named.setdefault((record.key, status), (variant, detail))
        lines += [f"* `{key}` {status}: {detail[:160]}" for (key, status), (_, detail) in sorted(named.items())]
    return "\n".join(lines) + "\n"


def _by_dtype(records: Iterable[Record]) -> list[str]:
    """A table: for each dtype, forward and with gradients, how many ops were tried and what became of their samples."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record in records:
        _, dtype, direction = record.key.split("/")
        counts[dtype, direction] += record.statuses + Counter(ops=1)
    columns = ("ops", *COLUMNS)
    lines = [f"| dtype | | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for (dtype, direction), found in counts.items():
        lines.append(f"| {dtype} | {direction} | {' | '.join(str(found[c]) for c in columns)} |")
    return [*lines, ""]


def _dtypes(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(r.key.split("/")[1] for r in records))


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
