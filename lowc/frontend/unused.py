"""Nodes of an FX graph that nothing needs, erased.

torch has such a pass, but it asks every node for its effects, and checks the whole graph first.
"""

from torch import fx

from lowc.frontend.collectives import is_collective


def drop_unused(graph: fx.Graph) -> None:
    """Erases what has no users and no effect."""
    for node in reversed(graph.nodes):
        if not node.users and not _has_effect(node):
            graph.erase_node(node)


def _has_effect(node: fx.Node) -> bool:
    """Whether ``node`` must stay though nothing needs its result."""
    return node.is_impure() or is_collective(node)
