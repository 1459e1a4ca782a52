"""What an ExportedProgram takes for granted of the sizes of its inputs, beyond their ranges, as arithmetic on these sizes.

torch keeps it as Python text, ``"(L['x'].size()[0] % 2) == 0"``, when a branch of the model was decided by a size.  An artifact
checks it in each call, so what cannot be read here must be refused.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from lowc.errors import LowcError
from lowc.ir.graph import Meta, TensorMeta
from lowc.ir.index import Index, ix

Condition = Any
"""An Index, or (operation, condition, condition) with the operations of ``_OPERATORS``; comparisons are 1 or 0."""

_OPERATORS: dict[type, str] = {
    ast.Add: "+", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=",
    ast.And: "min", ast.Or: "max",
}  # fmt: skip
_FUNCTIONS = {"min": "min", "max": "max", "torch.sym_min": "min", "torch.sym_max": "max"}  # the latter since torch 2.15


def conditions(code: Sequence[str], inputs: Mapping[str, Meta]) -> list[tuple[str, Condition]]:
    """(as a person reads it, the arithmetic) of each condition; ``inputs``: by the names that the exported graph has for them.

    Raises LowcError for one that is more than arithmetic on sizes and strides.
    """
    found: list[tuple[str, Condition]] = []
    for text in code:
        try:
            found.append((_shown(text), _tree(ast.parse(text, mode="eval").body, inputs)))
        except (SyntaxError, KeyError, IndexError, TypeError, ValueError) as error:
            raise LowcError(
                f"the program is for inputs with {_shown(text)} only, which an artifact cannot check ({error})",
                hint="torch.export.Dim says which sizes are meant",
            ) from error
    return found


def _shown(text: str) -> str:
    return text.replace("L['", "").replace("']", "").replace(".size()", ".shape").replace("torch.sym_", "")


def _tree(node: ast.expr, inputs: Mapping[str, Meta]) -> Condition:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return ix(int(node.value))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
        return _size(node.value, int(ast.literal_eval(node.slice)), inputs)
    if isinstance(node, ast.Subscript) and isinstance(number := inputs[_name(node)], Index):
        return number
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return ("*", ix(-1), _tree(node.operand, inputs))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ("==", _tree(node.operand, inputs), ix(0))
    if isinstance(node, ast.BinOp):
        a, b = _tree(node.left, inputs), _tree(node.right, inputs)
        if isinstance(node.op, ast.Sub):
            return ("+", a, ("*", ix(-1), b))
        return (_OPERATORS[type(node.op)], a, b)
    if isinstance(node, ast.BoolOp):
        return _chain(_OPERATORS[type(node.op)], [_tree(value, inputs) for value in node.values])
    if isinstance(node, ast.Compare):
        sides = [_tree(side, inputs) for side in (node.left, *node.comparators)]
        parts = [_compared(op, a, b) for op, a, b in zip(node.ops, sides, sides[1:])]
        return _chain("min", parts)
    if isinstance(node, ast.Call) and (function := _FUNCTIONS.get(ast.unparse(node.func))):
        return _chain(function, [_tree(value, inputs) for value in node.args])
    raise ValueError(f"{ast.unparse(node)} is no arithmetic")


def _compared(op: ast.cmpop, a: Condition, b: Condition) -> Condition:
    if isinstance(op, ast.Gt | ast.GtE):
        return ("<" if isinstance(op, ast.Gt) else "<=", b, a)
    return (_OPERATORS[type(op)], a, b)


def _chain(name: str, parts: Sequence[Condition]) -> Condition:
    whole = parts[0]
    for part in parts[1:]:
        whole = (name, whole, part)
    return whole


def _size(call: ast.Call, place: int, inputs: Mapping[str, Meta]) -> Index:
    """``L['x'].size()[0]``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("size", "stride"):
        raise ValueError(f"{ast.unparse(call)} is no size")
    meta = inputs[_name(call.func.value)]
    if not isinstance(meta, TensorMeta):
        raise ValueError(f"{ast.unparse(call.func.value)} is no tensor")
    return (meta.shape if call.func.attr == "size" else meta.strides)[place]


def _name(source: ast.expr) -> str:
    """``L['x']``: x; inside of containers inputs have names like ``x_key_0``."""
    keys: list[str] = []
    while isinstance(source, ast.Subscript):
        keys.append(str(ast.literal_eval(source.slice)))
        source = source.value
    return "_".join(reversed(keys))
