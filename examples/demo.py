"""Trains a small GPT on lowc's own sources, character by character: compiled by lowc, beside eager.

    python3 make.py demo                       or, in an environment that has lowc:
    python examples/demo.py [--steps 40] [--backend lowc]

Both models start from the same weights and see the same batches; steps alternate, so that both see the same state of the machine.
Shown are the losses, what the first (compiling) step cost, the speed-up, and one fused kernel as loop IR and as assembly.
"""

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT = 128
BATCH = 8
WIDTH = 128
HEADS = 4
LAYERS = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, HEADS, c // HEADS).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def read_text() -> str:
    """lowc's own sources."""
    root = Path(__file__).resolve().parent.parent / "lowc"
    return "\n".join(path.read_text() for path in sorted(root.rglob("*.py")))


def make_batches(text: str, alphabet: str, count: int) -> list[tuple[Tensor, Tensor]]:
    number = {c: n for n, c in enumerate(alphabet)}
    data = torch.tensor([number[c] for c in text])
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(count):
        starts = torch.randint(0, len(data) - CONTEXT - 1, (BATCH,), generator=generator).tolist()
        batches.append(
            (
                torch.stack([data[s : s + CONTEXT] for s in starts]),
                torch.stack([data[s + 1 : s + CONTEXT + 1] for s in starts]),
            )
        )
    return batches


def make_step(model: nn.Module, forward: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], float]:
    """One training step (forward, backward, AdamW in eager) that returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def step(ids: Tensor, targets: Tensor) -> float:
        loss = forward(ids, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def feed_forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """What is shown as a kernel: a residual, a layer norm and a GELU, all in one."""
    y = F.layer_norm(x + F.gelu(x), (WIDTH,), w, b)
    return y * torch.sigmoid(y)


def show_kernel(console: Console) -> None:
    from lowc.cli.compilation import compile_all
    from lowc.cli.dump import text
    from lowc.ir.printer import print_kernel
    from lowc.options import Options

    args = (torch.randn(1024, WIDTH), torch.randn(WIDTH), torch.randn(WIDTH))
    options = Options()
    (compiled,) = compile_all(feed_forward, args, options, backward=False).graphs
    kernels = [step.kernel for step in compiled.fused.steps if hasattr(step, "kernel")]
    console.rule(f"layer_norm(x + gelu(x)), then silu: {len(kernels)} kernel, as loop IR")
    for kernel in kernels:
        console.print(Syntax(print_kernel(kernel), "rust", background_color="default", word_wrap=True))
    console.rule("its innermost code")
    console.print(Syntax(hottest(text(compiled, "asm", options)), "nasm", background_color="default"))


def hottest(assembly: str, lines: int = 24) -> str:
    """The ``lines`` lines of ``assembly`` with the most vector arithmetic."""
    code = [
        line for line in assembly.splitlines() if line.startswith("\t") and not line.lstrip().startswith(".")
    ]
    weight = [
        line.split()[0].startswith(("vf", "vmul", "vadd", "vsub", "vdiv", "mulps", "addps")) for line in code
    ]
    best = max(range(max(1, len(code) - lines)), key=lambda n: sum(weight[n : n + lines]), default=0)
    return "\n".join(line.expandtabs(8) for line in code[best : best + lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--backend", default="lowc")
    chosen = parser.parse_args()
    console = Console()
    text = read_text()
    alphabet = "".join(sorted(set(text)))
    torch.manual_seed(0)
    eager = GPT(len(alphabet))
    ours = copy.deepcopy(eager)
    parameters = sum(p.numel() for p in eager.parameters())
    console.print(
        f"A GPT of {LAYERS} layers, {parameters / 1e6:.2f} M parameters, on {len(text):,} characters of lowc's own sources; "
        f"{torch.get_num_threads()} threads.",
        highlight=False,
    )
    batches = make_batches(text, alphabet, chosen.steps)
    steps = {
        "eager": make_step(eager, eager),
        chosen.backend: make_step(ours, torch.compile(ours, backend=chosen.backend, fullgraph=True)),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    table = Table(
        "step", *(f"loss, {name}" for name in steps), "difference", *(f"ms, {name}" for name in steps)
    )
    for column in table.columns:
        column.justify = "right"
    with console.status("training"):
        for number, batch in enumerate(batches):
            for name, step in steps.items() if number % 2 else reversed(steps.items()):
                start = time.perf_counter()
                losses[name].append(step(*batch))
                times[name].append(time.perf_counter() - start)
            if number % 5 == 0 or number == len(batches) - 1:
                now = [losses[name][-1] for name in steps]
                table.add_row(
                    str(number),
                    *(f"{loss:.5f}" for loss in now),
                    f"{abs(now[0] - now[1]):.0e}",
                    *(f"{times[name][-1] * 1e3:.1f}" for name in steps),
                )
    console.print(table)
    # The first steps compile, and warm the allocator.
    medians = {name: statistics.median(values[3:]) for name, values in times.items()}
    cold = times[chosen.backend][0] - medians[chosen.backend]
    speed = medians["eager"] / medians[chosen.backend]
    console.print(f"Compiling forward and backward took {cold:.2f} s, with no C compiler.", highlight=False)
    console.print(
        f"A step takes {medians[chosen.backend] * 1e3:.1f} ms, eager {medians['eager'] * 1e3:.1f} ms (medians): "
        f"[bold]{speed:.2f} times[/] eager's speed.",
        highlight=False,
    )
    show_kernel(console)
    worst = max(abs(a - b) for a, b in zip(losses["eager"], losses[chosen.backend]))
    if not worst < 0.02:
        console.print(f"[bold red]The losses differ by {worst:.3g}.[/]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
