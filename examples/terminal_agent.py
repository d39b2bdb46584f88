"""An agent in the terminal with 300 tools of two MCP servers, of which the model sees a few.

    python examples/terminal_agent.py

    > How many feet are 3 miles?
    > Add the note "milk" with the text "two litres".

The servers are started as processes (`mcp_servers.py`). The model searches for tools, and is sent
those that it has found. You are asked before a tool changes something. Ctrl-C stops an answer, and
an empty line ends the program. CHATCLIENT_MODEL names another model.
"""

import os
import sys
from pathlib import Path

from chatclient import ChatClient, ChatModel, TextDelta, ToolCallFinished
from chatclient.advisors import MessageChatMemoryAdvisor, ToolSearchToolCallingAdvisor
from chatclient.errors import ChatClientError
from chatclient.mcp import McpServer, McpToolCallbackProvider
from chatclient.memory import MessageWindowChatMemory
from chatclient.tools import ToolApproval, ToolCallingManager, ToolInvocation

SERVERS = str(Path(__file__).with_name("mcp_servers.py"))


def confirm(invocation: ToolInvocation) -> bool:
    """Ask whether a tool may run."""
    call = invocation.tool_call
    return input(f"\nRun {call.name} with {call.arguments!r}? [y/N] ").strip().lower() == "y"


def answer(client: ChatClient, text: str) -> None:
    """Print the answer while it arrives, and the tool calls."""
    for event in client.prompt(text).conversation("terminal").stream().events():
        match event:
            case TextDelta(text=piece):
                print(piece, end="", flush=True)
            case ToolCallFinished(tool_call=call, response=response):
                print(f"\n[{call.name}({call.arguments}) -> {response.data}]")
            case _:
                pass
    print()


def main(model: ChatModel | None = None) -> None:
    """Answer one line after the other."""
    # These two servers are ours, so what they say about their tools ("only reads") counts.
    units = McpServer.stdio("units", sys.executable, SERVERS, "units", trust_annotations=True)
    program = (sys.executable, SERVERS, "office", os.environ.get("OFFICE_RECORDS", "records"))
    office = McpServer.stdio("office", *program, trust_annotations=True)
    with (
        McpToolCallbackProvider(units, office) as tools,
        ChatClient.builder(model or os.environ.get("CHATCLIENT_MODEL", "local"))
        .default_system("You are a helpful assistant with tools. Be brief.")
        .default_tools(tools)
        .default_advisors(
            MessageChatMemoryAdvisor(MessageWindowChatMemory()),
            ToolSearchToolCallingAdvisor(max_results=3),
        )
        .default_options(temperature=0.0)
        .tool_calling_manager(ToolCallingManager(interceptors=[ToolApproval(ask=confirm)]))
        .build() as client,
    ):
        while True:
            try:
                text = input("> ")
            except (EOFError, KeyboardInterrupt):
                return
            if not text.strip():
                return
            try:
                answer(client, text)
            except KeyboardInterrupt:
                print("\n(stopped)")
            except ChatClientError as error:
                print(f"\n{error}")


if __name__ == "__main__":
    main()
