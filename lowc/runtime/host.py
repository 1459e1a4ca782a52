"""The host program of an artifact as Python source: straight-line code that a person could have written.

Takes an ``Artifact``, gives a ``lowc.host.Host``: the text of ``call(args: list) -> list`` (and of ``check(args)``,
which raises unless the inputs are what it was made for), and what the free names in it mean, as plain data.
Nothing here touches torch, so that the text can be shown anywhere; ``program.bind`` gives the names their
values.

    def call(args):
        x, w = args
        args.clear()
        out = empty((8, 256), (256, 1), float32)
        code = run_0(pack(x.data_ptr(), w.data_ptr(), out.data_ptr()))
        if code:
            raise failed(code)
        return [out]

``args`` is emptied, so that an input dies after its last use, as every temp does.  Slots belong to one call:
concurrent calls share nothing but the pool of workspaces, from which each call takes its own.
"""

import keyword
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lowc.artifact import Artifact, Native
from lowc.errors import LowcError
from lowc.host import TORCH_NAMES, Host
from lowc.ir import arithmetic, collective
from lowc.ir.index import Index, Symbol, atoms, constant, ix, split, text
from lowc.ir.nodes import Arg, Buffer, Extern, For, Launch, Module, View
from lowc.ir.types import DType
from lowc.ir.walk import statements, stores

HELPERS = (
    "as_strided",
    "bumped",
    "cast_view",
    "count",
    "empty",
    "expect",
    "failed",
    "finished",
    "give",
    "math",
    "new_slots",
    "pack",
    "placed",
    "restride",
    "take",
    "threads_as_torch",
)


def render(artifact: Artifact, constants: int = 0, *, checked: bool = False) -> Host:
    """The host program; with ``check`` if ``checked``.  The last ``constants`` inputs are not arguments of a
    call but fixed tensors, free names of the source.

    Raises LowcError if the size that a symbol stands for cannot be found from the inputs and the results of
    extern calls.
    """
    renderer = Renderer(artifact, constants)
    renderer.call()
    if checked:
        renderer.check()
    return renderer.host


class Renderer:
    """State of one rendering: the lines so far, which tensors are alive (and allocated here, ``own``; or must stay alive to the
    end of the call, ``held``), which sizes are known, and which slots are filled.
    """

    def __init__(self, artifact: Artifact, constants: int) -> None:
        module = artifact.module
        self.artifact = artifact
        self.module: Module = module
        self.host = Host(slots=len(artifact.slots))
        self.lines: list[str] = []
        self.indent = ""
        self.reserved = RESERVED
        self.placed = dict(module.placed)
        self.names: dict[str, str] = {}
        self.arguments = module.inputs[: len(module.inputs) - constants]
        self.fixed = module.inputs[len(module.inputs) - constants :]
        self.inputs = _names(module.inputs)
        self.returned = {view.buffer.name: view.buffer for view in views(module.outputs)}
        self.alive: set[str] = set()
        self.own: set[str] = set()
        self.held: set[str] = set()
        self.known: set[Symbol] = set()
        self.filled: set[int] = set()
        self.single = sum(isinstance(step, Native) for step in artifact.program) == 1
        self.last = _last_uses(artifact)
        self.written = _written(artifact) & self.inputs

    def call(self) -> None:
        """Adds ``call(args)`` to the source."""
        module = self.module
        self._unpack()
        if any(isinstance(step, Launch) and _is_parallel(step) for step in module.steps):
            self.emit("threads_as_torch()")
        if self.placed:
            self._require((module.workspace,))
            self.emit(f"ws = take({text(module.workspace)})")
        self._steps()
        if self.placed:
            self.emit("give(ws)")
        self._return()

    def _steps(self) -> None:
        """The steps of the program, and the outputs that none of them makes."""
        if not self.single and any(isinstance(step, Native) for step in self.artifact.program):
            self.emit("slots = new_slots()")
        for number, step in enumerate(self.artifact.program):
            if isinstance(step, Native):
                self._native(step)
            else:
                self._extern(step)
            self._free(number)
        for name, buffer in self.returned.items():
            if name not in self.alive:
                self._allocate(buffer)

    def _return(self) -> None:
        if self.written:
            self.emit(f"bumped({', '.join(self.name(n) for n in sorted(self.written))})")
        self.emit("return [" + ", ".join(self.arg(a) for a in self.module.outputs) + "]")
        self.host.source += function_text("call", self.lines)

    def check(self) -> None:
        """Adds ``check(args)``, which raises LowcError unless the inputs are what the program was made
        for.
        """
        self.lines, self.known = [f"count(args, {len(self.arguments)})"], set()
        if self.arguments:
            self._unpack(clear=False)
        for buffer in self.arguments:
            if isinstance(buffer, Buffer):
                name, shape, strides = self.name(buffer.name), tuple_text(buffer.shape), tuple_text(buffer.strides)
                self.emit(f"expect({name}, {buffer.name!r}, {dtype_text(buffer.dtype)}, {shape}, {strides})")
        self.host.source += "\n\n" + function_text("check", self.lines)

    def emit(self, line: str) -> None:
        self.lines.append(self.indent + line)

    def name(self, wanted: str) -> str:
        """A Python name for the buffer ``wanted``: itself where that is possible."""
        if wanted not in self.names:
            base = "".join(c if c.isalnum() else "_" for c in wanted)
            base = f"_{base}" if not base or base[0].isdigit() or base.startswith(_GENERATED) else base
            taken = {*self.names.values(), *(s.name for s in self.module.symbols)}
            while base in taken or base in self.reserved or keyword.iskeyword(base):
                base += "_"
            self.names[wanted] = base
        return self.names[wanted]

    # ------------------------------------------------------------ inputs and sizes

    def _unpack(self, clear: bool = True) -> None:
        names = [self._input_name(entry) for entry in self.arguments]
        if names:
            self.emit(", ".join(names) + ("," if len(names) == 1 else "") + " = args")
            if clear:
                self.emit("args.clear()")
        self.host.constants = tuple(self._input_name(entry) for entry in self.fixed)
        self.alive.update(self.inputs)
        buffers = [b for b in self.module.inputs if isinstance(b, Buffer)]
        for symbol in self.module.symbols:
            self._solve(symbol, buffers)
        for step in self.module.steps:
            if isinstance(step, Extern) and arithmetic.is_size(step) and self.known.issuperset(arithmetic.symbols(step.args[0])):
                self._size(step)

    def _size(self, step: Extern) -> None:
        """A size computed in line, unless an input has told it."""
        (symbol,) = step.results
        if isinstance(symbol, Symbol) and symbol not in self.known:
            self._require(map(ix, arithmetic.symbols(step.args[0])))
            self.emit(f"{symbol.name} = {arithmetic.text(step.args[0])}")
            self.known.add(symbol)

    def _input_name(self, entry: Buffer | Symbol | None) -> str:
        if isinstance(entry, Buffer):
            return self.name(entry.name)
        if isinstance(entry, Symbol):
            self.known.add(entry)
            return entry.name
        return "_"

    def _solve(self, symbol: Symbol, sources: Sequence[Buffer]) -> None:
        """Finds ``symbol`` as the size (or else the stride) of a dimension: ``a * symbol + b`` with numbers a
        and b.
        """
        if symbol in self.known:
            return
        found: list[tuple[int, str]] = []
        for buffer in sources:
            sizes = [(f"shape[{n}]", dim) for n, dim in enumerate(buffer.shape)]
            strides = [(f"stride({n})", dim) for n, dim in enumerate(buffer.strides)]
            for what, dim in sizes + strides:
                factor, rest = split(dim, symbol)
                scale, base = constant(factor), constant(rest)
                if not scale or base is None:
                    continue
                value = f"{self.name(buffer.name)}.{what}"
                value = f"({value} - {base})" if base else value
                cost = (scale != 1) + (base != 0) + 4 * what.startswith("stride")
                found.append((cost, value if scale == 1 else f"{value} // {scale}"))
        if found:
            self.emit(f"{symbol.name} = {min(found)[1]}")
            self.known.add(symbol)

    def _require(self, indices: Iterable[Index]) -> None:
        for index in indices:
            for atom in atoms(index):
                if isinstance(atom, Symbol) and atom not in self.known:
                    raise LowcError(f"the size {atom.name} cannot be found from the inputs of this call")

    # ------------------------------------------------------------ native calls

    def _native(self, step: Native) -> None:
        launches = [launch for i in step.launches if isinstance(launch := self.module.steps[i], Launch)]
        needed = {b.name: b for launch in launches for b in launch.args}
        for buffer in needed.values():
            if buffer.name not in self.alive and buffer.name not in self.placed:
                self._allocate(buffer)
        run = f"run_{len(self.host.natives)}"
        self.host.natives[run] = step.symbol
        values = [(slot, self._slot(holds, needed)) for slot, holds in enumerate(self.artifact.slots)]
        if self.single:
            self.emit(f"code = {run}(pack({', '.join(value or '0' for _, value in values)}))")
        else:
            fresh = [(slot, value) for slot, value in values if value and slot not in self.filled]
            self.filled.update(slot for slot, _ in fresh)
            for first, group in consecutive(fresh):
                index = f"{first}" if len(group) == 1 else f"{first}:{first + len(group)}"
                self.emit(f"slots[{index}] = {', '.join(group)}")
            self.emit(f"code = {run}(slots)")
        self.emit("if code:")
        self.emit("    raise failed(code)")

    def _slot(self, holds: str, needed: Mapping[str, Buffer]) -> str:
        """The expression for a slot, empty if this native call does not need it."""
        if holds == "workspace":
            return "ws.address" if self.placed else ""
        if holds in needed:
            return f"{self.name(holds)}.data_ptr()"
        return holds if any(s.name == holds for s in self.known) else ""

    def _allocate(self, buffer: Buffer) -> None:
        self._require((*buffer.shape, *buffer.strides))
        self.alive.add(buffer.name)
        self.own.add(buffer.name)
        shape, strides = tuple_text(buffer.shape), tuple_text(buffer.strides)
        self.emit(f"{self.name(buffer.name)} = empty({shape}, {strides}, {dtype_text(buffer.dtype)})")

    # ------------------------------------------------------------ extern calls

    def _extern(self, step: Extern) -> None:
        if arithmetic.is_size(step):
            self._size(step)
            return
        values = (*step.args, *(value for _, value in step.kwargs))
        for view in views(values):
            if view.buffer.name not in self.alive and view.buffer.name not in self.placed:
                self._allocate(view.buffer)
        args = [self.arg(a) for a in step.args] + [f"{key}={self.arg(value)}" for key, value in step.kwargs]
        results = [r for r in step.results if isinstance(r, Buffer)]
        if results and len(results) == len(step.results) and all(r.name in self.placed for r in results):
            self._extern_into(step, results, args)
            return
        call = f"{self._op(self.host.ops, step, '')}({', '.join(args)})"
        if all(r is None for r in step.results):
            self.emit(call)
            return
        names = [
            "_" if r is None else r.name if isinstance(r, Symbol) else self.name(r.name) for r in step.results
        ]
        self.emit(f"{', '.join(names)} = {call}")
        self.known.update(r for r in step.results if isinstance(r, Symbol))
        for result in results:
            self._take_result(result, collective.starts(step.target))

    def _take_result(self, result: Buffer, pending: bool = False) -> None:
        """The tensor that ATen returned becomes ``result``, whose dtype and strides lowc has planned with.

        They are those of torch's fake tensors, which are not always right.  ``pending``: a collective is still filling it.
        """
        name, strides = self.name(result.name), tuple_text(result.strides)
        for symbol in self.module.symbols:
            self._solve(symbol, [result])
        self._require((*result.shape, *result.strides))
        if result.name in self.placed:
            self.emit(f"{self._placed(result)}.copy_({name})")
            self.emit(f"del {name}")
            return
        self.alive.add(result.name)
        kind = dtype_text(result.dtype)
        self.emit(f"if {name}.dtype is not {kind}:")
        self.emit(f"    {name} = {name}.to({kind})")
        self.emit(f"if {name}.stride() != {strides}:")
        self.emit(f"    {name} = restride({f'finished({name})' if pending else name}, {strides})")

    def _extern_into(self, step: Extern, results: Sequence[Buffer], args: Sequence[str]) -> None:
        for result in results:
            self._require((*result.shape, *result.strides))
        memory = "(" + "".join(f"{self._placed(r)}, " for r in results).rstrip() + ")"
        self.emit(f"{self._op(self.host.into, step, '_into')}({', '.join([memory, *args])})")

    def _op(self, table: dict[str, tuple[str, int]], step: Extern, suffix: str) -> str:
        """A name for the op of ``step``: ``aten_mm`` for "aten.mm.default"; what the name does not tell, a
        number does.
        """
        base = "".join(c if c.isalnum() else "_" for c in step.target.removesuffix(".default")) + suffix
        what = (step.target, len(step.results))
        name, number = base, 1
        while table.setdefault(name, what) != what:
            number += 1
            name = f"{base}_{number}"
        return name

    # ------------------------------------------------------------ values

    def arg(self, value: Arg) -> str:
        """The Python expression of an argument or an output."""
        if isinstance(value, View):
            return self._view(value)
        if isinstance(value, Index):
            self._require((value,))
            return text(value)
        if isinstance(value, tuple):
            return "[" + ", ".join(self.arg(v) for v in value) + "]"
        if isinstance(value, DType):
            return dtype_text(value)
        if isinstance(value, str) and value.split(":")[0] in MARKS:
            return self._literal(value)
        if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
            return self._literal(value)
        return repr(value)

    def _literal(self, value: str | float | complex) -> str:
        name = "literal_" + "".join(c if c.isalnum() else "_" for c in repr(value)).strip("_")
        if repr(self.host.literals.setdefault(name, value)) != repr(value):
            name = f"literal_{len(self.host.literals)}"
            self.host.literals[name] = value
        return name

    def _view(self, view: View) -> str:
        buffer = view.buffer
        self._require((*view.shape, *view.strides, view.offset))
        if buffer.name in self.placed:
            return self._placed(buffer, view)
        name = self.name(buffer.name)
        same_type = view.dtype == buffer.dtype
        if same_type and view.shape == buffer.shape and view.strides == buffer.strides and view.offset == 0:
            return name
        shape, strides = tuple_text(view.shape), tuple_text(view.strides)
        if not same_type:
            return f"cast_view({name}, {dtype_text(view.dtype)}, {shape}, {strides}, {text(view.offset)})"
        offset = text(view.offset)
        if buffer.name not in self.own:
            offset = f"{name}.storage_offset()" + ("" if offset == "0" else f" + {offset}")
        return f"as_strided({name}, {shape}, {strides}, {offset})"

    def _placed(self, buffer: Buffer, view: View | None = None) -> str:
        """A tensor on the workspace; the last number is its offset there in bytes."""
        what = view or buffer
        start = self.placed[buffer.name] + (view.offset * view.dtype.bytes if view else 0)
        return (
            f"placed(ws, {dtype_text(what.dtype)}, {tuple_text(what.shape)}, {tuple_text(what.strides)}, {text(start)})"
        )

    def _free(self, number: int) -> None:
        """Lets go of what no later step needs, unless the call ends here anyway."""
        fixed = _names(self.fixed)
        keep = fixed | self.written | set(self.returned) | self.held
        dead = [n for n, last in self.last.items() if last == number and n in self.alive and n not in keep]
        if dead and number + 1 < len(self.artifact.program):
            self.emit("del " + ", ".join(self.name(n) for n in dead))
            self.alive.difference_update(dead)


MARKS = ("device", "memory_format", "layout")
_GENERATED = ("run_", "literal_", "aten_")
RESERVED = {
    *HELPERS,
    *TORCH_NAMES.values(),
    "abs",
    "bool_",
    "float",
    "round",
    "args",
    "slots",
    "ws",
    "code",
    "call",
    "min",
    "max",
    "_",
}


def function_text(name: str, lines: Sequence[str]) -> str:
    return f"def {name}(args):\n" + "".join(f"    {line}\n" for line in lines)


def _is_parallel(launch: Launch) -> bool:
    return any(isinstance(s, For) and s.kind.name == "parallel" for s in statements(launch.kernel.body))


def dtype_text(dtype: DType) -> str:
    return "bool_" if dtype.name == "bool" else TORCH_NAMES[dtype.name]


def tuple_text(indices: Sequence[Index]) -> str:
    return "(" + ", ".join(map(text, indices)) + ("," if len(indices) == 1 else "") + ")"


def _names(entries: Iterable[object]) -> set[str]:
    return {entry.name for entry in entries if isinstance(entry, Buffer)}


def views(args: Iterable[Arg]) -> Iterator[View]:
    """Every View in ``args``, nested lists included."""
    for arg in args:
        if isinstance(arg, View):
            yield arg
        elif isinstance(arg, tuple):
            yield from views(arg)


def consecutive(values: Sequence[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """(first slot, values) of each run of neighbouring slots."""
    first, group = -1, list[str]()
    for slot, value in values:
        if slot != first + len(group):
            if group:
                yield first, group
            first, group = slot, []
        group.append(value)
    if group:
        yield first, group


def _last_uses(artifact: Artifact) -> dict[str, int]:
    """Buffer name: number of the last step of the program that touches it."""
    out: dict[str, int] = {}
    for number, step in enumerate(artifact.program):
        if isinstance(step, Native):
            launches = [artifact.module.steps[i] for i in step.launches]
            used = {b.name for launch in launches if isinstance(launch, Launch) for b in launch.args}
        else:
            used = {view.buffer.name for view in views((*step.args, *(value for _, value in step.kwargs)))}
            used |= _names(step.results) | _names(step.writes)
        out.update(dict.fromkeys(used, number))
    return out


def _written(artifact: Artifact) -> set[str]:
    """Buffers that native code stores to."""
    out: set[str] = set()
    for step in artifact.program:
        launches = [artifact.module.steps[i] for i in step.launches] if isinstance(step, Native) else []
        for launch in launches:
            if isinstance(launch, Launch):
                argument = dict(zip((p.name for p in launch.kernel.params), launch.args, strict=True))
                out |= {
                    argument[s.buffer.name].name
                    for s in stores(launch.kernel.body)
                    if s.buffer.name in argument
                }
    return out
