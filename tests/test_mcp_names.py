"""What models call the tools of MCP servers."""

import re
from itertools import permutations
from typing import Any

import pytest

pytest.importorskip("mcp")

from chatclient.errors import UsageError
from chatclient.tools.mcp import McpServer, McpToolCallbackProvider
from chatclient.tools.mcp.names import names_for

ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def test_names_stay_as_they_are_without_a_clash() -> None:
    """A tool that is the only one of its name keeps it."""
    tools = [("crm", "find"), ("files", "read-file")]

    assert names_for(tools, "on_clash") == ["find", "read-file"]


def test_every_tool_of_a_name_gets_its_server_in_front() -> None:
    """No server has the better right to a name, whichever comes first."""
    tools = [("crm", "find"), ("files", "find"), ("files", "read")]

    for order in permutations(tools):
        named = dict(zip(order, names_for(order, "on_clash"), strict=True))
        assert named == {
            ("crm", "find"): "crm_find",
            ("files", "find"): "files_find",
            ("files", "read"): "read",
        }


def test_a_name_that_is_taken_is_a_clash() -> None:
    """A server cannot stand in for a tool of the application's."""
    assert names_for([("crm", "find")], "on_clash", {"find"}) == ["crm_find"]


def test_the_server_can_always_be_in_front() -> None:
    """Then a name tells whose tool it is."""
    assert names_for([("crm", "find")], "always") == ["crm_find"]


def test_names_can_be_left_alone() -> None:
    """Then a clash is for the client to refuse."""
    assert names_for([("a", "find"), ("b", "find")], "never") == ["find", "find"]


@pytest.mark.parametrize("prefix", ["on_clash", "always"])
def test_names_that_clash_all_the_same_are_told_apart(prefix: str) -> None:
    """What the prefix cannot tell apart gets a digest, the same every time."""
    tools = [("a", "b_c"), ("a_b", "c"), ("a", "x.y"), ("a", "x_y")]

    names = names_for(tools, prefix, {"b_c", "c"})  # type: ignore[arg-type]

    assert len(set(names)) == 4
    assert names == names_for(tools, prefix, {"b_c", "c"})  # type: ignore[arg-type]
    assert all(ACCEPTED.fullmatch(name) for name in names)
    assert names[0].startswith("a_b_c_")


def test_long_and_foreign_names_are_accepted_by_providers() -> None:
    """Whatever a server calls its tools, a provider takes it."""
    tools = [("s", "x" * 80), ("s", "工具"), ("s", "a b!"), ("t", "y" * 64), ("s", "y" * 64)]

    names = names_for(tools, "on_clash", {"x" * 80})

    assert len(set(names)) == 5
    assert all(ACCEPTED.fullmatch(name) for name in names)


def test_a_slip_in_when_to_prefix_is_told() -> None:
    """It never means another of the ways."""
    server = McpServer.stdio("a", "a")
    slip: Any = "allways"
    with pytest.raises(UsageError, match="'on_clash', 'always' or 'never', not 'allways'"):
        McpToolCallbackProvider(server, prefix=slip)
