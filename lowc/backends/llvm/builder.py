"""A typed SSA text builder: functions as lists of lines, equal pure instructions emitted once.

``pure`` looks an instruction up by its text in the scopes that dominate the place where it would stand
(value numbering), so that nobody above has to think of common subexpressions.  ``loop`` and ``branch`` open
and close those scopes.
"""

from collections.abc import Callable, Sequence

from lowc.backends.llvm.places import Places

ATTRIBUTES = '#0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }'


class ModuleText:
    """The functions and declarations of one LLVM module.  ``places``: the statements are to be found again in it."""

    def __init__(self, attributes: str = ATTRIBUTES, places: Places | None = None) -> None:
        self.attributes = attributes
        self.places = places
        self.functions: list[str] = []
        self.declarations: dict[str, str] = {}
        self.globals: dict[str, str] = {}

    def declare(self, name: str, result: str, args: str) -> None:
        self.declarations.setdefault(name, f"declare {result} @{name}({args})")

    def text(self) -> str:
        return "\n".join(
            [
                *self.globals.values(),
                *self.declarations.values(),
                "",
                *self.functions,
                f"attributes {self.attributes}",
                self.places.text() if self.places else "",
            ]
        )


class Builder:
    """One function in the making.  Operands and results are SSA texts (``%v3``, ``true``, ``splat (i32
    1)``); types are LLVM's.
    """

    def __init__(self, module: ModuleText) -> None:
        self.module = module
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.count = 0
        self.block = "entry"
        self.scopes: list[dict[str, str]] = [{}]
        self.loaded: list[tuple[dict[str, str], str]] = []
        self.function = -1
        self.mark = ""

    def at(self, stmt: object) -> None:
        """What follows is for ``stmt``, as far as anybody wants to know."""
        places = self.module.places
        if places is not None:
            if self.function < 0:
                self.function = places.function()
            self.mark = f", !dbg !{places.location(self.function, stmt)}"

    # ------------------------------------------------------------ instructions

    def name(self, hint: str = "v") -> str:
        self.count += 1
        return f"%{hint}{self.count}"

    def line(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}{self.mark}")

    def op(self, text: str, hint: str = "v") -> str:
        """An instruction whose result depends on more than its text (loads, calls with effects)."""
        name = self.name(hint)
        self.lines.append(f"  {name} = {text}{self.mark}")
        return name

    def pure(self, text: str, hint: str = "v") -> str:
        """An instruction without effects: the result of an equal one that dominates this place, or a new
        one.
        """
        for scope in reversed(self.scopes):
            found = scope.get(text)
            if found is not None:
                return found
        name = self.op(text, hint)
        self.scopes[-1][text] = name
        if text.startswith("load "):
            self.loaded.append((self.scopes[-1], text))
        return name

    def forget_loads(self) -> None:
        """Pure loads from here on are new ones, whatever equal ones there were: these need not be kept in registers till then."""
        for scope, text in self.loaded:
            scope.pop(text, None)
        self.loaded.clear()

    def call(self, function: str, result: str, args: Sequence[tuple[str, str]]) -> str:
        """A call of a pure function, declared as needed; ``args`` are (type, operand)."""
        self.module.declare(function, result, ", ".join(t for t, _ in args))
        return self.pure(f"call {result} @{function}({', '.join(f'{t} {a}' for t, a in args)})")

    def alloca(self, type_: str, align: int) -> str:
        """Memory of the function, for as long as it runs."""
        name = self.name("a")
        self.entry.append(f"  {name} = alloca {type_}, align {align}")
        return name

    # ------------------------------------------------------------ control

    def label(self, name: str) -> None:
        self.lines.append(f"{name[1:]}:")
        self.block = name[1:]

    def loop(
        self,
        low: str,
        high: str,
        step: int,
        carried: Sequence[tuple[str, str]],
        body: Callable[[str, list[str]], Sequence[str]],
        runs: bool,
        type_: str = "i64",
    ) -> list[str]:
        """for i = low; i < high; i += step, with ``carried`` (type, first value) through ``body(i, values)
        → next values``.

        Returns the values after the loop.  ``runs``: at least one iteration is certain, so no test comes
        before the first.  ``type_``: of the index.
        """
        head, done = self.name("loop"), self.name("done")
        before = self.block
        if not runs:
            enter = self.op(f"icmp slt {type_} {low}, {high}")
            self.line(f"br i1 {enter}, label {head}, label {done}")
        else:
            self.line(f"br label {head}")
        self.label(head)
        index, following = self.name("i"), self.name("i")
        values = [self.name("p") for _ in carried]
        position = len(self.lines)
        self.scopes.append({})
        new = list(body(index, values))
        self.scopes.pop()
        self.line(f"{following} = add nsw {type_} {index}, {step}")
        again = self.op(f"icmp slt {type_} {following}, {high}")
        last = self.block
        self.line(f"br i1 {again}, label {head}, label {done}")
        phis = [f"  {index} = phi {type_} [ {low}, %{before} ], [ {following}, %{last} ]"]
        for name, (type_, first), value in zip(values, carried, new, strict=True):
            phis.append(f"  {name} = phi {type_} [ {first}, %{before} ], [ {value}, %{last} ]")
        self.lines[position:position] = phis
        self.label(done)
        if runs:
            return new
        out: list[str] = []
        for (type_, first), value in zip(carried, new, strict=True):
            out.append(self.op(f"phi {type_} [ {first}, %{before} ], [ {value}, %{last} ]"))
        return out

    def branch(
        self, condition: str, carried: Sequence[tuple[str, str]], body: Callable[[], Sequence[str]]
    ) -> list[str]:
        """if condition: body(); ``carried`` are (type, value if not), ``body`` gives the values if so."""
        then, done = self.name("then"), self.name("done")
        before = self.block
        self.line(f"br i1 {condition}, label {then}, label {done}")
        self.label(then)
        self.scopes.append({})
        new = list(body())
        self.scopes.pop()
        last = self.block
        self.line(f"br label {done}")
        self.label(done)
        return [
            self.op(f"phi {type_} [ {old}, %{before} ], [ {value}, %{last} ]")
            for (type_, old), value in zip(carried, new, strict=True)
        ]

    def either(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """if condition: then(), else: otherwise()."""
        labels = self.name("then"), self.name("else")
        done = self.name("done")
        self.line(f"br i1 {condition}, label {labels[0]}, label {labels[1]}")
        for label, body in zip(labels, (then, otherwise), strict=True):
            self.label(label)
            self.scopes.append({})
            body()
            self.scopes.pop()
            self.line(f"br label {done}")
        self.label(done)

    def until(self, body: Callable[[], str]) -> None:
        """do body() until what it gives (an i1) holds."""
        head, done = self.name("again"), self.name("done")
        self.line(f"br label {head}")
        self.label(head)
        self.scopes.append({})
        held = body()
        self.scopes.pop()
        self.line(f"br i1 {held}, label {done}, label {head}")
        self.label(done)

    def leave(self, condition: str, lines: Sequence[str], result: str = "void") -> None:
        """if condition: the instructions ``lines``, and a return of ``result`` from the function."""
        failed, following = self.name("then"), self.name("else")
        self.line(f"br i1 {condition}, label {failed}, label {following}")
        self.label(failed)
        for text in lines:
            self.line(text)
        self.line(f"ret {result}")
        self.label(following)

    def finish(self, signature: str, result: str = "") -> None:
        """Adds the function to the module; ``signature`` is what stands behind ``define``, ``result`` the
        operand returned.
        """
        body = "\n".join([*self.entry, *self.lines])
        place = f" !dbg !{self.function}" if self.function >= 0 else ""
        self.module.functions.append(
            f"define {signature} #0{place} {{\nentry:\n{body}\n  ret {result or 'void'}\n}}\n"
        )
