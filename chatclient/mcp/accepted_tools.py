"""The tools of servers that an application accepts, by digests of their definitions."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from chatclient.errors import ToolDefinitionError
from chatclient.extend import check_type, get_logger
from chatclient.mcp.server import McpServer

log = get_logger(__name__)


class AcceptedTools:
    """Remembers the definitions of tools, and decides about changed ones.

    Args:
        pin: Whether a tool is left out when its server changes its definition; or the accepted
            tools, as `fingerprints` contains them, so that other tools are left out as well.
    """

    def __init__(self, pin: bool | Mapping[str, str]) -> None:  # noqa: FBT001 - see the provider
        check_type("pin", pin, (bool, Mapping))
        self._pin = pin is not False
        self._accepts_new = isinstance(pin, bool)
        self.fingerprints: dict[str, str] = {} if isinstance(pin, bool) else dict(pin)
        """Digests of the tools, by server and name."""

    def accepts(self, server: McpServer, tool: Any) -> bool:
        """Return whether *tool* is offered, and log a change of its definition.

        Raises:
            ToolDefinitionError: Its definition is too long.
        """
        definition = _definition(tool)
        if len(definition) > (most := server.limits.definition_length):
            msg = (
                f"the definition of the tool {tool.name[:100]!r} is longer than {most:,} characters"
            )
            raise ToolDefinitionError(msg)
        key, digest = f"{server.name}/{tool.name}", hashlib.sha256(definition.encode()).hexdigest()
        accepted = self.fingerprints.get(key)
        if accepted == digest:
            return True
        if accepted is None and self._accepts_new:
            self.fingerprints[key] = digest
            return True
        event = "mcp tool is not accepted" if accepted is None else "mcp tool has changed"
        log.warning(event, server=server.name, tool=tool.name, left_out=self._pin)
        if not self._pin:
            self.fingerprints[key] = digest
        return not self._pin


def _definition(tool: Any) -> str:
    """Return the definition of *tool* by the server, as JSON."""
    definition = tool.model_dump(mode="json", by_alias=True, exclude={"meta", "icons"})
    return json.dumps(definition, sort_keys=True)
