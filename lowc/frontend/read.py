"""A graph from AOTAutograd is read: equal nodes merged, collectives arranged, and all written down as an ``ir.Graph``."""

from typing import NamedTuple

import torch
from torch import fx

from lowc.errors import InternalError, LowcError
from lowc.frontend import collectives
from lowc.frontend.cse import merge_equal_nodes
from lowc.frontend.importer import import_graph
from lowc.frontend.unread import constants_of, knowledge
from lowc.ir.graph import Graph


class Reading(NamedTuple):
    """``repeatable``: whether a graph of the same text can do without: reading has told torch nothing about sizes."""

    graph: Graph
    constants: list[torch.Tensor]
    repeatable: bool


def read(gm: fx.GraphModule, name: str, strict: bool) -> Reading:
    """Raises LowcError; with ``strict``, what is a bug of lowc's comes as it is.  Changes ``gm``."""
    known, held = knowledge(gm), constants_of(gm)
    graph, constants = _imported(gm, name, strict)
    return Reading(graph, constants, known == knowledge(gm) and list(map(id, held)) == list(map(id, constants)))


def _imported(gm: fx.GraphModule, name: str, strict: bool) -> tuple[Graph, list[torch.Tensor]]:
    try:
        merge_equal_nodes(gm.graph)
        collectives.arrange(gm.graph)
        return import_graph(gm, name)
    except LowcError:
        raise
    except Exception as error:
        if strict:
            raise
        raise InternalError(error) from error
