"""The C interface of an artifact as an object file: arguments checked, sizes found, code for this processor chosen and called.

    lowc_run(inputs, n, outputs, m, workspace, bytes)     what docs/standalone.md and ``standalone/header.py`` say
    lowc_sizes(inputs, n, sizes)                          the sizes of the outputs
    lowc_workspace(inputs, n)                             bytes
    lowc_message(code)                                    what a code means

The functions of the levels, ``run.0`` and so on, and the weights, ``lowc.weights``, come from outside: ``standalone/shared.py``
links them.  A ``lowc_tensor`` is {data, sizes, strides, rank, dtype}; a code below 0 is -(kind + 256 * number of the argument).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm

from lowc.backends.llvm import toolchain
from lowc.backends.llvm.builder import Builder, ModuleText

if TYPE_CHECKING:
    from lowc.standalone.manifest import Code, Manifest, Tensor

MESSAGES = {
    0: "no error",
    -1: "wrong number of inputs",
    -2: "wrong number of outputs",
    -3: "an address is missing",
    -4: "wrong dtype",
    -5: "wrong rank",
    -6: "wrong size, or an integer out of its range",
    -7: "wrong strides",
    -8: "no memory for the workspace, or the one given is too small",
    -9: "this processor cannot run the code",
    -10: "the model was not exported for these sizes together",
    1: "index out of range",
    2: "integer division by zero",
}
COUNT_IN, COUNT_OUT, ADDRESS, DTYPE, RANK, SIZE, STRIDES, MEMORY, PROCESSOR, CONDITION = range(1, 11)
_ARGUMENT = 256
_ALIGN = 64
TENSOR = "{ ptr, ptr, ptr, i32, i32 }"
_CPUID = '"={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"'


@dataclass(frozen=True, slots=True)
class Need:
    """Bits of a register (0 to 3: eax to edx) of ``cpuid`` with eax = ``leaf`` and ecx = ``sub``; ``xcr0``: of the register that
    says what the system saves."""

    leaf: int
    sub: int
    register: int
    bits: int
    xcr0: bool = False


def code(
    manifest: "Manifest", prefix: str, dtypes: Mapping[str, int], needs: Sequence[Sequence[Need]], offsets: Sequence[int]
) -> bytes:
    """The object file.  ``needs``: of each code of the manifest.  ``offsets``: of each weight behind ``lowc.weights``."""
    _allow_assembly()
    return toolchain.emit_object(text(manifest, prefix, dtypes, needs, offsets), "x86-64", "")


@cache
def _allow_assembly() -> None:
    llvm.initialize_native_asmparser()  # without it LLVM ends the process where it meets ``cpuid``


def text(
    manifest: "Manifest", prefix: str, dtypes: Mapping[str, int], needs: Sequence[Sequence[Need]], offsets: Sequence[int]
) -> str:
    """The LLVM IR of that."""
    module = ModuleText()
    entry = _Entry(module, manifest, prefix, dtypes)
    entry.level(needs)
    entry.check()
    entry.sizes()
    entry.spaces()
    for number in range(len(manifest.code)):
        entry.call(number, offsets)
    entry.run()
    entry.message()
    return module.text()


class _Entry:
    """The functions one by one.  Sizes that a call tells are handed on in an array, in the order of ``manifest.symbols``."""

    def __init__(self, module: ModuleText, manifest: "Manifest", prefix: str, dtypes: Mapping[str, int]) -> None:
        self.module, self.manifest, self.prefix, self.dtypes = module, manifest, prefix, dtypes

    # ------------------------------------------------------------ parts of functions

    def known(self, b: Builder) -> dict[str, str]:
        """The sizes, read from ``%known``."""
        return {
            symbol.name: b.pure(f"load i64, ptr {b.pure(f'getelementptr i64, ptr %known, i64 {number}')}")
            for number, symbol in enumerate(self.manifest.symbols)
        }

    def field(self, b: Builder, array: str, number: int, field: int, type_: str) -> str:
        place = b.pure(f"getelementptr {TENSOR}, ptr {array}, i64 {number}, i32 {field}")
        return b.pure(f"load {type_}, ptr {place}")

    def refuse(self, b: Builder, condition: str, kind: int, argument: int = 0) -> None:
        b.leave(condition, [], f"i64 {-(kind + _ARGUMENT * argument)}")

    def tensor(self, b: Builder, array: str, number: int, argument: int, tensor: "Tensor") -> list[str]:
        """Checks dtype and rank; the sizes."""
        self.refuse(b, f"{_ne(b, 'i32', self.field(b, array, number, 4, 'i32'), self.dtypes[tensor.dtype])}", DTYPE, argument)
        rank = len(tensor.shape)
        self.refuse(b, _ne(b, "i32", self.field(b, array, number, 3, "i32"), rank), RANK, argument)
        if not rank:
            return []
        sizes = self.field(b, array, number, 1, "ptr")
        self.refuse(b, b.pure(f"icmp eq ptr {sizes}, null"), ADDRESS, argument)
        return [b.pure(f"load i64, ptr {b.pure(f'getelementptr i64, ptr {sizes}, i64 {d}')}") for d in range(rank)]

    def memory(self, b: Builder, array: str, number: int, argument: int, shape: Sequence[str]) -> None:
        """Checks that there is an address, unless there are no elements."""
        count = _product(b, shape)
        missing = b.pure(f"icmp eq ptr {self.field(b, array, number, 0, 'ptr')}, null")
        self.refuse(b, b.pure(f"and i1 {missing}, {b.pure(f'icmp ne i64 {count}, 0')}"), ADDRESS, argument)

    def number(self, b: Builder, number: int) -> str:
        """The integer that an input is."""
        self.memory(b, "%inputs", number, number, ())
        return b.op(f"load i64, ptr {self.field(b, '%inputs', number, 0, 'ptr')}")

    def strides(
        self, b: Builder, array: str, number: int, argument: int, shape: Sequence[str], wanted: Sequence[str]
    ) -> None:
        """Checks the strides (an address of 0: contiguous ones) where there is more than one element along a dimension."""
        given = self.field(b, array, number, 2, "ptr")
        dense = "1"
        some = b.pure(f"icmp ne i64 {_product(b, shape)}, 0")
        for d in reversed(range(len(shape))):
            expected, plain = wanted[d], dense
            dense = b.pure(f"mul i64 {dense}, {shape[d]}")

            def one(d: int = d) -> list[str]:
                return [b.op(f"load i64, ptr {b.op(f'getelementptr i64, ptr {given}, i64 {d}')}")]

            (actual,) = b.branch(b.pure(f"icmp ne ptr {given}, null"), [("i64", plain)], one)
            wrong = b.pure(f"icmp ne i64 {actual}, {expected}")
            several = b.pure(f"icmp sgt i64 {shape[d]}, 1")
            self.refuse(b, b.pure(f"and i1 {b.pure(f'and i1 {wrong}, {several}')}, {some}"), STRIDES, argument)

    # ------------------------------------------------------------ functions

    def level(self, needs: Sequence[Sequence[Need]]) -> None:
        """``i64 @level()``: the number of the first code that this processor runs, or -1; found out once."""
        self.module.globals["chosen"] = "@chosen = internal global i64 -2, align 8"
        b = Builder(self.module)
        seen = b.op("load atomic i64, ptr @chosen monotonic, align 8")
        b.leave(b.op(f"icmp ne i64 {seen}, -2"), [], f"i64 {seen}")
        highest = {base: self._cpuid(b, base, 0, 0) for base in (0, 0x80000000)}
        chosen = "-1"
        for number in reversed(range(len(needs))):
            fine = "true"
            for need in needs[number]:
                fine = b.pure(f"and i1 {fine}, {self._has(b, need, highest)}")
            chosen = b.pure(f"select i1 {fine}, i64 {number}, i64 {chosen}")
        b.line(f"store atomic i64 {chosen}, ptr @chosen monotonic, align 8")
        b.finish("internal i64 @level()", f"i64 {chosen}")

    def _cpuid(self, b: Builder, leaf: int, sub: int, register: int) -> str:
        all_ = b.pure(f"call {{ i32, i32, i32, i32 }} asm \"cpuid\", {_CPUID}(i32 {leaf}, i32 {sub})")
        return b.pure(f"extractvalue {{ i32, i32, i32, i32 }} {all_}, {register}")

    def _has(self, b: Builder, need: Need, highest: Mapping[int, str]) -> str:
        if need.xcr0:
            # xgetbv is an illegal instruction where the system has not switched it on (bit 27 of cpuid 1, ecx)
            on = b.pure(f"and i32 {self._cpuid(b, 1, 0, 2)}, {1 << 27}")

            def read() -> list[str]:
                pair = b.op('call { i32, i32 } asm "xgetbv", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)')
                return [b.op(f"extractvalue {{ i32, i32 }} {pair}, 0")]

            (found,) = b.branch(b.pure(f"icmp ne i32 {on}, 0"), [("i32", "0")], read)
        else:
            base = need.leaf & 0x80000000
            there = b.pure(f"icmp uge i32 {highest[base]}, {need.leaf}")
            found = b.pure(f"select i1 {there}, i32 {self._cpuid(b, need.leaf, need.sub, need.register)}, i32 0")
        return b.pure(f"icmp eq i32 {b.pure(f'and i32 {found}, {need.bits}')}, {need.bits}")

    def check(self) -> None:
        """``i64 @check(inputs, n, known)``: whether the inputs fit; the sizes that they tell go to ``known``."""
        b, manifest = Builder(self.module), self.manifest
        self.refuse(b, _ne(b, "i64", "%n", len(manifest.inputs)), COUNT_IN)
        shapes = [self.tensor(b, "%inputs", n, n, tensor) for n, tensor in enumerate(manifest.inputs)]
        numbers = {n: self.number(b, n) for n, tensor in enumerate(manifest.inputs) if tensor.value is not None}
        known: dict[str, str] = {}
        for number, symbol in enumerate(manifest.symbols):
            argument, dim, factor, added = symbol.source
            rest = b.pure(f"sub i64 {numbers[argument] if dim < 0 else shapes[argument][dim]}, {added}")
            size = b.pure(f"sdiv i64 {rest}, {factor}")
            self.refuse(b, _ne(b, "i64", b.pure(f"srem i64 {rest}, {factor}"), 0), SIZE, argument)
            self.refuse(b, b.pure(f"icmp slt i64 {size}, {symbol.low}"), SIZE, argument)
            if symbol.high is not None:
                self.refuse(b, b.pure(f"icmp sgt i64 {size}, {symbol.high}"), SIZE, argument)
            known[symbol.name] = size
            b.line(f"store i64 {size}, ptr {b.pure(f'getelementptr i64, ptr %known, i64 {number}')}")
        for n, tensor in enumerate(manifest.inputs):
            if tensor.value is not None:
                self.refuse(b, _ne(b, "i64", numbers[n], value(b, tensor.value, known)), SIZE, n)
            for dim, tree in zip(shapes[n], tensor.shape, strict=True):
                self.refuse(b, _ne(b, "i64", dim, value(b, tree, known)), SIZE, n)
            self.memory(b, "%inputs", n, n, shapes[n])
            if shapes[n]:
                self.strides(b, "%inputs", n, n, shapes[n], [value(b, tree, known) for tree in tensor.strides])
        for tree, _ in manifest.conditions:
            self.refuse(b, b.pure(f"icmp eq i64 {value(b, tree, known)}, 0"), CONDITION)
        b.finish("internal i64 @check(ptr %inputs, i64 %n, ptr %known)", "i64 0")

    def begin(self) -> tuple[Builder, dict[str, str]]:
        """The start of a function that takes inputs: they are checked."""
        b = Builder(self.module)
        known = b.alloca(f"[{max(len(self.manifest.symbols), 1)} x i64]", 8)
        b.entry.append(f"  %known = getelementptr i8, ptr {known}, i64 0")
        code = b.op("call i64 @check(ptr %inputs, i64 %n, ptr %known)")
        b.leave(b.op(f"icmp ne i64 {code}, 0"), [], f"i64 {code}")
        return b, self.known(b)

    def sizes(self) -> None:
        b, known = self.begin()
        for number, output in enumerate(self.manifest.outputs):
            shape: Sequence[Any] = getattr(output, "shape", ())
            if not shape:
                continue
            place = b.pure(f"load ptr, ptr {b.pure(f'getelementptr ptr, ptr %sizes, i64 {number}')}")
            for d, tree in enumerate(shape):
                b.line(f"store i64 {value(b, tree, known)}, ptr {b.pure(f'getelementptr i64, ptr {place}, i64 {d}')}")
        b.finish(f"i64 @{self.prefix}_sizes(ptr %inputs, i64 %n, ptr %sizes)", "i64 0")

    def spaces(self) -> None:
        """``i64 @space(known, level)`` and the function that tells the user."""
        b = Builder(self.module)
        known = self.known(b)
        total = "0"
        for number, each in enumerate(self.manifest.code):
            here = b.pure(f"icmp eq i64 %level, {number}")
            total = b.pure(f"select i1 {here}, i64 {value(b, each.workspace, known)}, i64 {total}")
        b.finish("internal i64 @space(ptr %known, i64 %level)", f"i64 {total}")
        b, _ = self.begin()
        level = b.op("call i64 @level()")
        self.refuse(b, b.op(f"icmp slt i64 {level}, 0"), PROCESSOR)
        b.finish(
            f"i64 @{self.prefix}_workspace(ptr %inputs, i64 %n)", f"i64 {b.op(f'call i64 @space(ptr %known, i64 {level})')}"
        )

    def call(self, number: int, offsets: Sequence[int]) -> None:
        """``i64 @call.N(inputs, outputs, known, workspace)``: the slots filled, the code of level N called."""
        b, code = Builder(self.module), self.manifest.code[number]
        known = list(self.known(b).values())
        self.module.globals["weights"] = "@lowc.weights = external global i8"
        made = ""
        if code.once is not None:
            self.made(number, offsets)
            made = b.op(f"call ptr @made.{number}()")
            self.refuse(b, b.op(f"icmp eq ptr {made}, null"), MEMORY)
        slots = b.alloca(f"[{max(len(code.slots), 1)} x i64]", 8)
        for slot, (kind, which) in enumerate(code.slots):
            place = b.pure(f"getelementptr i64, ptr {slots}, i64 {slot}")
            if kind == "symbol":
                b.line(f"store i64 {known[which]}, ptr {place}")
                continue
            if kind == "weight":
                address = b.pure(f"getelementptr i8, ptr @lowc.weights, i64 {offsets[which]}")
            elif kind == "workspace":
                address = "%workspace"
            elif kind == "made":
                address = b.pure(f"getelementptr i8, ptr {made}, i64 {_places(code)[which]}")
            else:
                address = self.field(b, f"%{kind}s", which, 0, "ptr")
            b.line(f"store ptr {address}, ptr {place}")
        self.module.declare(f"run.{number}", "i64", "ptr")
        result = b.op(f"call i64 @run.{number}(ptr {slots})")
        b.finish(
            f"internal i64 @call.{number}(ptr %inputs, ptr %outputs, ptr %known, ptr %workspace)",
            f"i64 {b.op(f'and i64 {result}, 15')}",
        )

    def made(self, number: int, offsets: Sequence[int]) -> None:
        """``ptr @made.N()``: the memory of what is made of the weights once, for as long as the process lives; null if there
        is none.  Of threads that come at the same time each may make it, and all take that of the first one done."""
        b, code = Builder(self.module), self.manifest.code[number]
        assert code.once is not None
        self.module.globals[f"kept.{number}"] = f"@kept.{number} = internal global ptr null, align 8"
        seen = b.op(f"load atomic ptr, ptr @kept.{number} acquire, align 8")
        b.leave(b.op(f"icmp ne ptr {seen}, null"), [], f"ptr {seen}")
        self.module.declare("posix_memalign", "i32", "ptr, i64, i64")
        self.module.declare("free", "void", "ptr")
        cell = b.alloca("ptr", 8)
        places = _places(code)
        failed = b.op(f"call i32 @posix_memalign(ptr {cell}, i64 {_ALIGN}, i64 {places[-1]})")
        b.leave(b.op(f"icmp ne i32 {failed}, 0"), [], "ptr null")
        memory = b.op(f"load ptr, ptr {cell}")
        slots = b.alloca(f"[{len(code.slots)} x i64]", 8)
        for slot, (kind, which) in enumerate(code.slots):
            place = b.pure(f"getelementptr i64, ptr {slots}, i64 {slot}")
            address = "null"
            if kind == "weight":
                address = b.pure(f"getelementptr i8, ptr @lowc.weights, i64 {offsets[which]}")
            elif kind == "made":
                address = b.pure(f"getelementptr i8, ptr {memory}, i64 {places[which]}")
            b.line(f"store ptr {address}, ptr {place}")
        self.module.declare(f"once.{number}", "i64", "ptr")
        b.op(f"call i64 @once.{number}(ptr {slots})")
        exchanged = b.op(f"cmpxchg ptr @kept.{number}, ptr null, ptr {memory} acq_rel acquire")
        first = b.op(f"extractvalue {{ ptr, i1 }} {exchanged}, 0")
        late = b.op(f"icmp ne ptr {first}, null")

        def release() -> list[str]:
            b.line(f"call void @free(ptr {memory})")
            return []

        b.branch(late, [], release)
        b.finish(f"internal ptr @made.{number}()", f"ptr {b.op(f'select i1 {late}, ptr {first}, ptr {memory}')}")

    def run(self) -> None:
        b, known = self.begin()
        manifest = self.manifest
        count = len(manifest.inputs)
        self.refuse(b, _ne(b, "i64", "%m", len(manifest.outputs)), COUNT_OUT)
        for number, output in enumerate(manifest.outputs):
            shape = self.tensor(b, "%outputs", number, count + number, _as_tensor(output))
            wanted = [value(b, tree, known) for tree in _as_tensor(output).shape]
            for dim, expected in zip(shape, wanted, strict=True):
                self.refuse(b, _ne(b, "i64", dim, expected), SIZE, count + number)
            self.memory(b, "%outputs", number, count + number, wanted)
            if shape:
                dense = [value(b, tree, known) for tree in _as_tensor(output).strides]
                self.strides(b, "%outputs", number, count + number, shape, dense)
        level = b.op("call i64 @level()")
        self.refuse(b, b.op(f"icmp slt i64 {level}, 0"), PROCESSOR)
        needed = b.op(f"call i64 @space(ptr %known, i64 {level})")
        own = b.op("icmp eq ptr %workspace, null")
        small = b.op(f"icmp slt i64 %bytes, {needed}")
        self.refuse(b, b.op(f"and i1 {b.op(f'xor i1 {own}, true')}, {small}"), MEMORY)
        uneven = b.op(f"and i64 {b.op('ptrtoint ptr %workspace to i64')}, 63")
        self.refuse(b, b.op(f"icmp ne i64 {uneven}, 0"), MEMORY)
        self.module.declare("posix_memalign", "i32", "ptr, i64, i64")
        self.module.declare("free", "void", "ptr")
        cell = b.alloca("ptr", 8)
        b.line(f"store ptr %workspace, ptr {cell}")

        def allocate() -> list[str]:
            return [b.op(f"call i32 @posix_memalign(ptr {cell}, i64 64, i64 {b.op(f'add i64 {needed}, 64')})")]

        (failed,) = b.branch(own, [("i32", "0")], allocate)
        self.refuse(b, b.op(f"icmp ne i32 {failed}, 0"), MEMORY)
        memory = b.op(f"load ptr, ptr {cell}")
        result = "0"
        for number in range(len(manifest.code)):

            def called(number: int = number) -> list[str]:
                return [b.op(f"call i64 @call.{number}(ptr %inputs, ptr %outputs, ptr %known, ptr {memory})")]

            (result,) = b.branch(b.op(f"icmp eq i64 {level}, {number}"), [("i64", result)], called)
        for number, output in enumerate(manifest.outputs):
            if not hasattr(output, "shape"):
                tree: Any = getattr(output, "value")  # noqa: B009
                b.line(f"store i64 {value(b, tree, known)}, ptr {self.field(b, '%outputs', number, 0, 'ptr')}")

        def release() -> list[str]:
            b.line(f"call void @free(ptr {memory})")
            return []

        b.branch(own, [], release)
        arguments = "ptr %inputs, i64 %n, ptr %outputs, i64 %m, ptr %workspace, i64 %bytes"
        b.finish(f"i64 @{self.prefix}_run({arguments})", f"i64 {result}")

    def message(self) -> None:
        b = Builder(self.module)
        chosen = self._text(len(MESSAGES), "unknown code")
        # -(kind + 256 * argument): the kind alone
        negated = b.op("sub i64 0, %code")
        kind = b.op(f"sub i64 0, {b.op(f'and i64 {negated}, {_ARGUMENT - 1}')}")
        below = b.op("icmp slt i64 %code, 0")
        kind = b.op(f"select i1 {below}, i64 {kind}, i64 %code")
        for number, (code_, message) in enumerate(MESSAGES.items()):
            same = b.op(f"icmp eq i64 {kind}, {code_}")
            chosen = b.op(f"select i1 {same}, ptr {self._text(number, message)}, ptr {chosen}")
        b.finish(f"ptr @{self.prefix}_message(i64 %code)", f"ptr {chosen}")

    def _text(self, number: int, message: str) -> str:
        name = f"text.{number}"
        self.module.globals[name] = f'@{name} = private constant [{len(message) + 1} x i8] c"{message}\\00"'
        return f"@{name}"


def _places(code: "Code") -> list[int]:
    """Where what is made of the weights begins in its memory, and where the last of it ends."""
    places = [0]
    for size in code.once.sizes if code.once is not None else ():
        places.append(-(-(places[-1] + size) // _ALIGN) * _ALIGN)
    return places


def _as_tensor(output: Any) -> Any:
    """An output that is a size is a 0-d i64 tensor."""
    return output if hasattr(output, "shape") else _Scalar()


@dataclass(frozen=True, slots=True)
class _Scalar:
    dtype: str = "i64"
    shape: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()


def _ne(b: Builder, type_: str, a: str, number: int | str) -> str:
    return b.pure(f"icmp ne {type_} {a}, {number}")


def _product(b: Builder, values: Sequence[str]) -> str:
    total = "1"
    for each in values:
        total = b.pure(f"mul i64 {total}, {each}")
    return total


_COMPARISONS = {"<": "slt", "<=": "sle", "==": "eq", "!=": "ne"}


def value(b: Builder, tree: Any, known: Mapping[str, str]) -> str:
    """A size as an operand, from the form that ``standalone.manifest`` gives it; divisors below 1 count as 1."""
    if isinstance(tree, int):
        return str(tree)
    if isinstance(tree, str):
        return known[tree]
    name, x, y = tree[0], value(b, tree[1], known), value(b, tree[2], known)
    if name in ("+", "*"):
        return b.pure(f"{'add' if name == '+' else 'mul'} i64 {x}, {y}")
    if name in _COMPARISONS:
        return b.pure(f"zext i1 {b.pure(f'icmp {_COMPARISONS[name]} i64 {x}, {y}')} to i64")
    if name in ("min", "max"):
        less = b.pure(f"icmp {'slt' if name == 'min' else 'sgt'} i64 {x}, {y}")
        return b.pure(f"select i1 {less}, i64 {x}, i64 {y}")
    y = b.pure(f"select i1 {b.pure(f'icmp slt i64 {y}, 1')}, i64 1, i64 {y}")
    rest = b.pure(f"srem i64 {x}, {y}")
    negative = b.pure(f"icmp slt i64 {rest}, 0")
    if name == "%":
        return b.pure(f"select i1 {negative}, i64 {b.pure(f'add i64 {rest}, {y}')}, i64 {rest}")
    whole = b.pure(f"sdiv i64 {x}, {y}")
    return b.pure(f"select i1 {negative}, i64 {b.pure(f'sub i64 {whole}, 1')}, i64 {whole}")
