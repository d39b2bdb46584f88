"""Edges use what others could use: public names and `chatclient.extend`."""

from chatclient._internal.exports import PUBLIC_PACKAGES, exports_of
from tests.support.rings import EDGES, edge_of, imports_of

NOT_PUBLIC = 241
"""The number of names that edges import from the core and that are not public; it only falls."""


def test_edges_import_public_names() -> None:
    """An edge takes few names of the core that an author outside could not import."""
    public = {name for package in PUBLIC_PACKAGES for name in exports_of(package)}
    taken = {
        (module, name)
        for edge in EDGES
        for module, name in imports_of(edge)
        if edge_of(module) is None
        and name not in public
        and module != "chatclient._internal.exports"
    }

    assert len(taken) <= NOT_PUBLIC
    assert len(taken) > NOT_PUBLIC - 20, "lower the number"
