"""A client for the conformance suite of MCP: what each of its scenarios asks for."""

import json
import os
import sys
from typing import Any
from urllib.request import urlopen

from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)

from chatclient import ChatClient
from chatclient.mcp import McpOAuth, McpServer, McpToolCallbackProvider
from chatclient.testing import ScriptedModel, call
from chatclient.tools import tool_callbacks

DOCUMENT = "https://conformance-test.local/client-metadata.json"
ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}}


def log_in(url: str) -> None:
    """Do what a browser does: the servers of the suite redirect at once."""
    with urlopen(url) as page:
        page.read()


class NoStore:
    """Keeps nothing."""

    async def get_tokens(self) -> None:
        return None

    async def get_client_info(self) -> None:
        return None

    async def set_tokens(self, tokens: object) -> None:
        pass

    async def set_client_info(self, client_info: object) -> None:
        pass


def auth_for(given: dict[str, Any]) -> Any:
    """Return what the scenario asks for: a login of a user, or of a program."""
    scenario, url = os.environ["MCP_CONFORMANCE_SCENARIO"], sys.argv[1]
    if scenario == "auth/client-credentials-basic":
        return ClientCredentialsOAuthProvider(
            url, NoStore(), given["client_id"], given["client_secret"], "client_secret_basic"
        )
    if scenario == "auth/client-credentials-jwt":
        signed = SignedJWTParameters(
            issuer=given["client_id"],
            subject=given["client_id"],
            signing_algorithm=given["signing_algorithm"],
            signing_key=given["private_key_pem"],
        )
        return PrivateKeyJWTOAuthProvider(
            url, NoStore(), given["client_id"], signed.create_assertion_provider()
        )
    return McpOAuth(given.get("client_id", DOCUMENT), given.get("client_secret"), open_url=log_in)


def main() -> None:
    """Connect to the server of the scenario, list its tools, and call each of them."""
    given: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    server = McpServer.http(
        "suite", sys.argv[1], auth=auth_for(given), on_elicitation=lambda _question: {}
    )
    with McpToolCallbackProvider(server) as tools:
        names = [each.definition.name for each in tool_callbacks(tools)]
        answers = [call(name, ARGUMENTS.get(name, {})) for name in names]
        client = ChatClient.create(ScriptedModel(*answers, "Done."))
        client.prompt("Go").tools(tools).call().content()


if __name__ == "__main__":
    main()
