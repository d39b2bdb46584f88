"""Names of MCP tools for models."""

import re
from itertools import permutations
from typing import Any

import pytest

pytest.importorskip("mcp")

from chatclient.advisors.tool_search.session import FOUND_TOOLS
from chatclient.advisors.tool_search.tool import SEARCH_TOOL
from chatclient.chain.params import TOOL_SEARCH_ROLES
from chatclient.chat.message_merging import CORRECTION
from chatclient.chat.messages import ENDS_TURN
from chatclient.chat.tool import OWN_METADATA, RESERVED_TOOL_NAMES
from chatclient.errors import UsageError
from chatclient.mcp import McpServer, McpToolCallbackProvider
from chatclient.mcp.provider import names_for
from chatclient.memory.summary import SUMMARY
from chatclient.providers.anthropic.decoding import CONTAINER
from chatclient.providers.openai.dialect import REASONING_FIELD
from chatclient.tools.skills import ACTIVATE_SKILL, READ_SKILL_RESOURCE

ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def test_unique_names_are_kept() -> None:
    """A unique name is unchanged."""
    tools = [("crm", "find"), ("files", "read-file")]

    assert names_for(tools, "on_clash") == ["find", "read-file"]


@pytest.mark.feature("mcp-tool-name-prefix")
def test_equal_names_are_prefixed() -> None:
    """All tools with one name get their server's name as prefix."""
    tools = [("crm", "find"), ("files", "find"), ("files", "read")]

    for order in permutations(tools):
        named = dict(zip(order, names_for(order, "on_clash"), strict=True))
        assert named == {
            ("crm", "find"): "crm_find",
            ("files", "find"): "files_find",
            ("files", "read"): "read",
        }


def test_application_names_are_taken() -> None:
    """A name of the application is taken."""
    assert names_for([("crm", "find")], "on_clash", {"find"}) == ["crm_find"]


def test_always_prefix() -> None:
    """With the setting every name has its server as prefix."""
    assert names_for([("crm", "find")], "always") == ["crm_find"]


@pytest.mark.feature("mcp-no-prefix")
def test_never_prefix() -> None:
    """Without prefixes equal names are rejected by the client."""
    assert names_for([("a", "find"), ("b", "find")], "never") == ["find", "find"]


@pytest.mark.parametrize("prefix", ["on_clash", "always"])
def test_digest_for_equal_prefixed_names(prefix: str) -> None:
    """Equal prefixed names get a stable digest."""
    tools = [("a", "b_c"), ("a_b", "c"), ("a", "x.y"), ("a", "x_y")]

    names = names_for(tools, prefix, {"b_c", "c"})  # type: ignore[arg-type]

    assert len(set(names)) == 4
    assert names == names_for(tools, prefix, {"b_c", "c"})  # type: ignore[arg-type]
    assert all(ACCEPTED.fullmatch(name) for name in names)
    assert names[0].startswith("a_b_c_")


@pytest.mark.feature("mcp-tool-utils-format")
def test_names_are_valid_for_providers() -> None:
    """Long and invalid names become valid ones."""
    tools = [("s", "x" * 80), ("s", "工具"), ("s", "a b!"), ("t", "y" * 64), ("s", "y" * 64)]

    names = names_for(tools, "on_clash", {"x" * 80})

    assert len(set(names)) == 5
    assert all(ACCEPTED.fullmatch(name) for name in names)


def test_invalid_prefix_setting() -> None:
    """An unknown setting raises."""
    server = McpServer.stdio("a", "a")
    slip: Any = "allways"
    with pytest.raises(UsageError, match="'on_clash', 'always' or 'never', not 'allways'"):
        McpToolCallbackProvider(server, prefix=slip)


@pytest.mark.parametrize("prefix", ["on_clash", "never", "always"])
def test_names_of_own_tools_get_a_prefix(prefix: Any) -> None:
    """A server cannot take the place of the tool search, or make every request fail."""
    tools = [("crm", "toolSearchTool"), ("crm", "activate_skill"), ("crm", "final_answer")]

    assert names_for(tools, prefix) == [
        "crm_toolSearchTool",
        "crm_activate_skill",
        "crm_final_answer",
    ]


@pytest.mark.parametrize("prefix", ["on_clash", "always"])
def test_prefix_makes_no_reserved_name(prefix: Any) -> None:
    """The name of a server and that of its tool could be one together."""
    tools = [("final", "answer"), ("read", "skill_resource")]

    names = names_for(tools, prefix, {"answer", "skill_resource"})

    assert RESERVED_TOOL_NAMES.isdisjoint(names)
    assert names[0].startswith("final_answer_")


def test_reserved_names_are_complete() -> None:
    """They are repeated in a module that cannot import them."""
    assert {SEARCH_TOOL, ACTIVATE_SKILL, READ_SKILL_RESOURCE} < RESERVED_TOOL_NAMES
    own = {ENDS_TURN, CORRECTION, SUMMARY, FOUND_TOOLS, TOOL_SEARCH_ROLES, REASONING_FIELD}
    assert own | {CONTAINER} < OWN_METADATA
