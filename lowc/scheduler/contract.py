"""Carrying out the Schedule of a contraction: the primitives of ``apply``, and those that only contractions need."""

from lowc.ir.nodes import Kernel
from lowc.ir.walk import make_kernel, names
from lowc.scheduler import apply as primitives
from lowc.scheduler.ahead import Ahead, ahead
from lowc.scheduler.apply import Primitive, at_loop
from lowc.scheduler.depthwise import Depthwise, depthwise
from lowc.scheduler.direct import Direct, direct
from lowc.scheduler.dots import Dots, dots
from lowc.scheduler.gather import Gather, gather
from lowc.scheduler.gradient_blocks import GradientBlocks, gradient_blocks
from lowc.scheduler.grid import Grid, grid
from lowc.scheduler.matrices import Matrices, matrices
from lowc.scheduler.online import Online, online
from lowc.scheduler.online_dots import OnlineDots, online_dots
from lowc.scheduler.outward import Outward, outward
from lowc.scheduler.pack import Pack, pack
from lowc.scheduler.pairs import Pairs, pairs
from lowc.scheduler.quads import Quads, quads
from lowc.scheduler.registers import Registers, registers
from lowc.scheduler.relay import Relayed, relayed
from lowc.scheduler.relay_across import RelayedAcross, relayed_across
from lowc.scheduler.relay_gradient import RelayedGradient, relayed_gradient
from lowc.scheduler.settle import Settle, settle
from lowc.scheduler.tensor_cores import TensorCores, tensor_cores

Rows = Registers | Matrices | Dots | Gather
Blocks = Online | OnlineDots | GradientBlocks | Relayed | RelayedGradient | RelayedAcross | Depthwise | Direct
Step = Primitive | Pairs | Quads | Ahead | Grid | Outward | Pack | Rows | Settle | TensorCores | Blocks


def apply(kernel: Kernel, step: Step) -> Kernel:
    """``kernel`` with ``step`` carried out; raises ScheduleError if its meaning would not stay."""
    if isinstance(step, Ahead):
        return ahead(kernel, step)
    if isinstance(step, Quads):
        return quads(kernel, step)
    if isinstance(step, GradientBlocks):
        return gradient_blocks(kernel, step)
    body = kernel.body
    taken = names(body) | {p.name for p in (*kernel.params, *kernel.sizes)}
    if isinstance(step, Grid):
        body = at_loop(body, step.axes[0], lambda loop: grid(loop, step, taken))
    elif isinstance(step, Outward):
        body = at_loop(body, step.axes[0], lambda loop: outward(loop, step, taken))
    elif isinstance(step, Pairs):
        body = at_loop(body, step.axis, lambda loop: pairs(loop, step))
    elif isinstance(step, Pack):
        body = at_loop(body, step.axis, lambda loop: pack(loop, step, taken))
    elif isinstance(step, Registers):
        body = at_loop(body, step.axis, lambda loop: registers(loop, step, taken))
    elif isinstance(step, Matrices):
        body = at_loop(body, step.axis, lambda loop: matrices(loop, step, taken))
    elif isinstance(step, Gather):
        body = at_loop(body, step.axis, lambda loop: gather(loop, step, taken))
    elif isinstance(step, TensorCores):
        body = at_loop(body, step.axis, lambda loop: tensor_cores(loop, step, taken))
    elif isinstance(step, Relayed):
        body = at_loop(body, step.axis, lambda loop: relayed(loop, step, taken))
    elif isinstance(step, RelayedGradient):
        body = at_loop(body, step.axis, lambda loop: relayed_gradient(loop, step, taken))
    elif isinstance(step, RelayedAcross):
        body = at_loop(body, step.axis, lambda loop: relayed_across(loop, step, taken))
    elif isinstance(step, Online):
        body = at_loop(body, step.axis, lambda loop: online(loop, step, taken))
    elif isinstance(step, OnlineDots):
        body = at_loop(body, step.axis, lambda loop: online_dots(loop, step, taken))
    elif isinstance(step, Depthwise):
        body = at_loop(body, step.axis, lambda loop: depthwise(loop, step, taken))
    elif isinstance(step, Direct):
        body = at_loop(body, step.axis, lambda loop: direct(loop, step, taken))
    elif isinstance(step, Settle):
        body = settle(body, step)
    elif isinstance(step, Dots):
        body = at_loop(body, step.axis, lambda loop: dots(loop, step, taken))
    else:
        return primitives.apply(kernel, (step,))
    return make_kernel(kernel.name, body, kernel.params)
