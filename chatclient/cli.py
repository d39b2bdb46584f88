"""Chat in the terminal, with any model, with tools, and with a look at what goes on.

python -m chatclient                                  # the local model, no key
python -m chatclient --model openai:gpt-5-mini --tools myapp.tools:WeatherTools --trace
echo "Say hello" | python -m chatclient --model ollama:qwen3
"""

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TextIO

from chatclient.advisors.memory import MessageChatMemoryAdvisor
from chatclient.client import ChatClient
from chatclient.errors import ChatClientError, UsageError
from chatclient.events import ReasoningDelta, TextDelta, ToolCallFinished
from chatclient.memory import MessageWindowChatMemory
from chatclient.observation import Operation
from chatclient.operations import ModelCall
from chatclient.streams import StreamResponse
from chatclient.texts import on_one_line
from chatclient.trail import Trail
from chatclient.version import __version__

_SHOWN = 200  # characters of a tool's result on screen
_PROMPT = "> "
_HELP = "Say something. An empty line or Ctrl-D ends the chat, Ctrl-C an answer."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status: 0, 1 when a request failed, 2 for misuse."""
    arguments = _parser().parse_args(argv)
    with ExitStack() as resources:
        try:
            client = _client(arguments, resources)
        except (ChatClientError, ImportError, AttributeError) as error:
            print(f"chatclient: {error}", file=sys.stderr)
            return 2
        chat = Chat(client, arguments.conversation, sys.stdout, trace=arguments.trace)
        if arguments.text:
            return chat.say(" ".join(arguments.text))
        if not sys.stdin.isatty():
            return chat.say(sys.stdin.read())
        return chat.talk(input)  # pragma: no cover - a terminal, as the tests of `talk` have none


class Chat:
    """A conversation in a terminal.

    Args:
        client: Who answers.
        conversation: The conversation's id.
        out: Where the answers go.
        trace: Whether each turn is followed by what it consisted of.
    """

    def __init__(
        self, client: ChatClient, conversation: str, out: TextIO, *, trace: bool = False
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._out = out
        self._trace = trace

    def talk(self, read: Callable[[str], str]) -> int:
        """Answer line after line, until there is an empty one or none."""
        self._write(f"{self._client}\n\n{_HELP}\n")
        while True:
            try:
                text = read(_PROMPT)
            except (EOFError, KeyboardInterrupt):
                text = ""
            if not text.strip():
                return 0
            self.say(text)

    def say(self, text: str) -> int:
        """Answer *text*, showing words and tool calls as they come; return the exit status."""
        try:
            stream = self._client.prompt(text).conversation(self._conversation).stream()
            self._show(stream)
        except KeyboardInterrupt:
            self._write("\n(interrupted)\n")
            return 1
        except ChatClientError as error:
            self._write(f"\n{type(error).__name__}: {error}\n")
            if self._trace and error.trail is not None:
                self._write_trace(error.trail)
            return 1
        if self._trace:
            self._write_trace(stream.trail())
        return 0

    def _show(self, stream: StreamResponse) -> None:
        at_line_start = True
        for event in stream.events():
            match event:
                case TextDelta(text=text):
                    self._write(text)
                    at_line_start = text.endswith("\n")
                case ReasoningDelta(text=text) if self._trace:
                    self._write(text)
                    at_line_start = text.endswith("\n")
                case ToolCallFinished(tool_call=call, response=response):
                    mark = "failed" if response.is_error else "->"
                    result = on_one_line(response.data, _SHOWN)
                    line = f"[{call.name}({call.arguments}) {mark} {result}]\n"
                    self._write(line if at_line_start else f"\n{line}")
                    at_line_start = True
                case _:
                    pass
        self._write("" if at_line_start else "\n")

    def _write_trace(self, trail: Trail) -> None:
        self._write("".join(f"{line}\n" for line in _tree(trail)))

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


# --- the tree of a turn ---------------------------------------------------------------------


def _tree(trail: Trail) -> Iterator[str]:
    for depth, step in trail.tree():
        took = "" if step.seconds is None else f" {step.seconds * 1000:.1f} ms"
        cost = _tokens(step.operation, step.result)
        failed = "" if step.error is None else f" !{type(step.error).__name__}"
        yield f"  {'  ' * depth}{step.operation.name}{took}{cost}{failed}"


def _tokens(operation: Operation, result: Any) -> str:
    if not isinstance(operation, ModelCall) or result is None:
        return ""
    return f", {result.usage.input_tokens} + {result.usage.output_tokens} tokens"


# --- the client -----------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("chatclient", description="Chat in the terminal.")
    parser.add_argument("text", nargs="*", help="what to say; without, a chat begins")
    parser.add_argument(
        "--model",
        default=os.environ.get("CHATCLIENT_MODEL", "local"),
        help="such as openai:gpt-5-mini or ollama:qwen3 (default: %(default)s)",
    )
    parser.add_argument("--system", help="the system text")
    parser.add_argument(
        "--tools",
        action="append",
        default=[],
        metavar="MODULE:OBJECT",
        help="a function, an object, or a class to make one of; repeatable",
    )
    parser.add_argument(
        "--mcp",
        action="append",
        default=[],
        metavar="COMMAND|URL",
        help="an MCP server whose tools are offered; repeatable",
    )
    parser.add_argument(
        "--memory",
        metavar="URL",
        help="where the conversation is kept, such as sqlite:///chat.db or redis://localhost; "
        "without, it is forgotten at the end",
    )
    parser.add_argument("--conversation", default="terminal", help="its id (default: %(default)s)")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--trace", action="store_true", help="show what each turn consisted of")
    return parser


def _client(arguments: argparse.Namespace, resources: ExitStack) -> ChatClient:
    builder = ChatClient.builder(arguments.model)
    if arguments.system:
        builder = builder.default_system(arguments.system)
    memory = _memory(arguments.memory, resources)
    tools = [_named(name) for name in arguments.tools]
    if arguments.mcp:
        tools.append(_mcp_tools(arguments.mcp, resources))
    client = (
        builder.default_tools(*tools).default_advisors(MessageChatMemoryAdvisor(memory)).build()
    )
    resources.callback(client.close)
    return client


def _named(name: str) -> Any:
    """Return what *name* names, such as `myapp.tools:WeatherTools`; of a class, an object."""
    module, _, path = name.partition(":")
    if not path:
        msg = f"--tools wants MODULE:OBJECT, not {name!r}"
        raise UsageError(msg)
    if "" not in sys.path:
        sys.path.insert(0, "")  # what lies in the current folder, as with `python -m`
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type):
        return found
    try:
        return found()
    except TypeError as error:
        msg = f"cannot make a {path} ({error}); make one in {module}, and name that"
        raise UsageError(msg) from error


def _memory(url: str | None, resources: ExitStack) -> MessageWindowChatMemory:
    if url is None:
        return MessageWindowChatMemory()
    from chatclient.memory import (  # noqa: PLC0415 - drivers that most have no use for
        RedisChatMemoryRepository,
        SqlChatMemoryRepository,
    )

    kind = RedisChatMemoryRepository if url.startswith("redis") else SqlChatMemoryRepository
    repository = kind(url)
    resources.callback(repository.close)
    return MessageWindowChatMemory(repository)


def _mcp_tools(servers: Sequence[str], resources: ExitStack) -> Any:
    from chatclient.tools.mcp import (  # noqa: PLC0415 - an extra
        McpServer,
        McpToolCallbackProvider,
    )

    def server(number: int, where: str) -> McpServer:
        if where.startswith(("http://", "https://")):
            return McpServer.http(f"mcp{number}", where)
        try:
            command, *more = shlex.split(where)
        except ValueError as error:
            msg = f"--mcp wants a URL, or a command as in a shell, not {where!r}"
            raise UsageError(msg) from error
        return McpServer.stdio(f"mcp{number}", command, *more)

    found = [server(number, where) for number, where in enumerate(servers, 1)]
    return resources.enter_context(McpToolCallbackProvider(*found))
