"""Chat in the terminal or on a page, with any model, tools and memory.

python -m chatclient                                  # the local model, no key
python -m chatclient web app:client                   # a page in the browser
python -m chatclient --model openai:gpt-5-mini --tools myapp.tools:WeatherTools --trace
echo "Say hello" | python -m chatclient --model ollama:qwen3
python -m chatclient replay turn.json app:client      # a recorded turn, with the client of today
python -m chatclient worker app:clients --database postgresql://localhost/turns  # durable turns
python -m chatclient turns --database postgresql://localhost/turns    # which wait or are stuck
"""

import argparse
import importlib
import logging
import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO, cast

from chatclient._internal.extras import needed_by
from chatclient._internal.text import on_one_line, printable, printable_line
from chatclient._internal.version import __version__
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.chat.events import ReasoningDelta, TextDelta, ToolCallFinished
from chatclient.chat.pending_turn import Decision
from chatclient.client.client import ChatClient
from chatclient.client.stream_response import StreamResponse
from chatclient.errors import ChatClientError, UsageError
from chatclient.memory.chat_memory import MessageWindowChatMemory
from chatclient.memory.repository import ChatMemoryRepository
from chatclient.observability.operations import ModelCall
from chatclient.observability.trail import Trail
from chatclient.runtime.observation import Operation
from chatclient.testing.turn_recording import TurnRecording
from chatclient.testing.turn_replay import replay_turn
from chatclient.tools.execution.approval import ToolApproval, ToolInvocation
from chatclient.tools.execution.manager import ToolCallingManager

_RESULT_LENGTH = 200  # maximum number of characters shown of a tool's result
_PROMPT = "> "
_HELP = "Write a message. An empty line or Ctrl-D ends the chat, Ctrl-C stops an answer."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 if a request failed, 2 for wrong usage."""
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["worker"]:
        from chatclient.durable.worker import main as run_worker  # noqa: PLC0415 - an extra

        return run_worker(given[1:])
    if given[:1] == ["turns"]:
        from chatclient.durable.worker import operate  # noqa: PLC0415 - for this command

        return operate(given[1:])
    if given[:1] == ["web"]:
        return _serve(given[1:])
    if given[:1] == ["replay"]:
        return _replay(given[1:])
    parser = argparse.ArgumentParser(
        "chatclient",
        description="Chat in the terminal; `chatclient web` serves a page instead.",
        parents=[_client_options()],
    )
    parser.add_argument("text", nargs="*", help="the message; without it, a chat starts")
    parser.add_argument("--conversation", default="terminal", help="its id (default: %(default)s)")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--trace", action="store_true", help="show the operations of each turn")
    parser.add_argument("--record", metavar="FILE", help="record the last turn, for `replay`")
    arguments = parser.parse_args(given)
    approval = ToolApproval(ask=confirm if sys.stdin.isatty() else deny)
    with ExitStack() as resources:
        try:
            client = _client(arguments, resources, approval)
        except (ChatClientError, ImportError, AttributeError) as error:
            print(printable(f"chatclient: {error}"), file=sys.stderr)
            return 2
        chat = Chat(
            client,
            arguments.conversation,
            sys.stdout,
            trace=arguments.trace,
            record=arguments.record,
        )
        if arguments.text:
            return chat.send(" ".join(arguments.text))
        if not sys.stdin.isatty():
            return chat.send(sys.stdin.read())
        return chat.run(input)  # pragma: no cover - needs a terminal


class Chat:
    """A conversation in a terminal.

    Args:
        client: The client.
        conversation: The id of the conversation.
        out: The output stream.
        trace: Whether to print the operations of each turn after it.
        record: The file into which the last turn is recorded, or None.
    """

    def __init__(
        self,
        client: ChatClient,
        conversation: str,
        out: TextIO,
        *,
        trace: bool = False,
        record: str | None = None,
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._out = out
        self._trace = trace
        self._record = record

    def run(self, read: Callable[[str], str]) -> int:
        """Send each line from *read* until an empty line or the end of input; return 0."""
        self._write(f"{self._client}\n\n{_HELP}\n")
        while True:
            try:
                text = read(_PROMPT)
            except (EOFError, KeyboardInterrupt):
                text = ""
            if not text.strip():
                return 0
            self.send(text)

    def send(self, text: str) -> int:
        """Send *text*, print the answer and the tool calls, and return the exit status."""
        try:
            stream = self._client.prompt(text).conversation(self._conversation).stream()
            self._show(stream)
        except KeyboardInterrupt:
            self._write("\n(interrupted)\n")
            return 1
        except ChatClientError as error:
            self._write(f"\n{type(error).__name__}: {error}\n")
            if error.trail is not None:
                self._keep(error.trail)
            return 1
        self._keep(stream.trail())
        pending = stream.pending_turn()
        if pending is None:
            return 0
        calls = ", ".join(f"{call.name}({call.arguments})" for call in pending.to_decide().values())
        what = f"a decision is needed about {printable_line(calls)}"
        self._write(f"(no answer yet: {what}; `chatclient web` asks for it)\n")
        return 1

    def _show(self, stream: StreamResponse) -> None:
        at_line_start = after_tool = True
        for event in stream.events():
            match event:
                case TextDelta(text=text):
                    self._write(text.lstrip("\n") if after_tool else text)
                    at_line_start, after_tool = text.endswith("\n"), False
                case ReasoningDelta(text=text) if self._trace:
                    self._write(text)
                    at_line_start = text.endswith("\n")
                case ToolCallFinished(tool_call=call, response=response):
                    mark = "failed" if response.is_error else "->"
                    result = on_one_line(response.data, _RESULT_LENGTH)
                    line = printable_line(f"[{call.name}({call.arguments}) {mark} {result}]") + "\n"
                    self._write(line if at_line_start else f"\n{line}")
                    at_line_start = after_tool = True
                case _:
                    pass
        self._write("" if at_line_start else "\n")

    def _keep(self, trail: Trail) -> None:
        """Print and record the operations of a turn, as far as that is wanted."""
        if self._trace:
            self._write("".join(f"{printable_line(line)}\n" for line in _tree(trail)))
        if self._record is not None:
            TurnRecording.of(trail).save(self._record)

    def _write(self, text: str) -> None:
        self._out.write(printable(text))
        self._out.flush()


# --- trace ----------------------------------------------------------------------------------


def _tree(trail: Trail) -> Iterator[str]:
    for depth, step in trail.tree():
        duration = "" if step.seconds is None else f" {step.seconds * 1000:.1f} ms"
        tokens = _tokens(step.operation, step.result)
        error = "" if step.error is None else f" !{type(step.error).__name__}"
        yield f"  {'  ' * depth}{step.operation.name}{duration}{tokens}{error}"


def _tokens(operation: Operation, result: Any) -> str:
    if not isinstance(operation, ModelCall) or result is None:
        return ""
    return f", {result.usage.tokens_text()}"


# --- approval -------------------------------------------------------------------------------


def confirm(invocation: ToolInvocation) -> Decision:
    """Ask in the terminal whether a tool may be run."""
    call = invocation.tool_call
    question = printable_line(f"Run {call.name}({call.arguments})? [y/N] ")
    try:
        answer = input(f"\n{question}")
    except EOFError:
        answer = ""
    return Decision(answer.strip().lower() in ("y", "yes"))


def deny(invocation: ToolInvocation) -> Decision:
    """Deny the call, because there is no terminal."""
    name = printable_line(invocation.tool_call.name)
    print(f"chatclient: {name} was not run; --yes runs tools that write", file=sys.stderr)
    message = "The user cannot be asked here, so no tool that changes anything is run."
    return Decision(approved=False, message=message)


# --- the page -------------------------------------------------------------------------------


def _serve(argv: Sequence[str]) -> int:
    """Serve the chat page until it is interrupted, and return the exit status."""
    parser = argparse.ArgumentParser(
        "chatclient web", description="Serve a chat page.", parents=[_client_options()]
    )
    parser.add_argument(
        "client",
        nargs="?",
        metavar="MODULE:OBJECT",
        help="a ChatClient, a DurableClient, a WebChat, or a function that returns one; default: "
        "the client that the options describe",
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8000, help="0 for any (default: %(default)s)")
    arguments = parser.parse_args(argv)
    with ExitStack() as resources:
        try:
            command, name = _web_command(), arguments.client
            if name is None:
                found = _client(arguments, resources, ToolApproval())  # decided on the page
            else:
                found = _load(name, "web")
            chat = _web_chat(found, name)
            where = arguments.host, arguments.port
            command.serve(chat, *where, report=print, close=_close_of(chat, resources))
        except (ChatClientError, ImportError, AttributeError) as error:
            print(printable(f"chatclient: {error}"), file=sys.stderr)
            return 2
    return 0


def _web_command() -> Any:
    """Return the module that serves the page.

    Raises:
        MissingExtraError: The extra `web` is not installed.
    """
    with needed_by("the chat page"):
        return importlib.import_module("chatclient.web.page")


def _web_chat(found: Any, name: str | None) -> Any:
    """Return the chat for *found*: a client, durable or not, a `WebChat`, or a function for one.

    Raises:
        UsageError: It is something else.
    """
    from chatclient.durable.client import DurableClient  # noqa: PLC0415 - for this command
    from chatclient.web.chat import WebChat  # noqa: PLC0415 - optional

    if not isinstance(found, ChatClient | DurableClient | WebChat) and callable(found):
        found = found()
    if isinstance(found, ChatClient | DurableClient):
        return WebChat(found, trail=True)
    if isinstance(found, WebChat):
        return found
    msg = (
        f"{name} must be a ChatClient, a DurableClient, a WebChat or a function that returns one,"
        f" not {found!r}"
    )
    raise UsageError(msg)


def _close_of(chat: Any, resources: ExitStack) -> Callable[[], Awaitable[None]]:
    """Return what closes the client of a `WebChat`; *resources* closes one of durable turns.

    Raises:
        UsageError: The turns are durable, and the application has launched no engine.
    """
    from chatclient.durable.client import DurableClient  # noqa: PLC0415 - for this command

    client: ChatClient | DurableClient = chat.client
    if isinstance(client, ChatClient):
        return client.aclose
    from chatclient.durable.engine import current_engine, has_engine  # noqa: PLC0415 - an extra

    if not has_engine():
        msg = (
            f"{client.name!r} is a durable client, whose turns need a database: after it is made,"
            " call chatclient.durable.launch(url) or connect(url) in the same module or function"
        )
        raise UsageError(msg)
    resources.callback(client.client.close)
    resources.callback(current_engine().close)  # first, as turns that run need the client

    async def close() -> None:
        pass

    return close


# --- recorded turns -------------------------------------------------------------------------


_TEST = """\
\"\"\"A recorded turn, replayed with the client of today.\"\"\"

from pathlib import Path

import {module}
from chatclient.testing import TurnRecording, replay_turn

RECORDING = Path(__file__).with_name("{recording}")


def test_{name}() -> None:
    \"\"\"The client sends what it sent when the turn was recorded.\"\"\"
    replay = replay_turn(TurnRecording.load(RECORDING), {client})

    assert replay.difference is None, replay
"""


def _replay(argv: Sequence[str]) -> int:
    """Replay a recorded turn, print the first differences, and return the exit status."""
    arguments = _replay_parser().parse_args(argv)
    try:
        found: Any = _load(arguments.client, "replay")
        is_made = not isinstance(found, ChatClient) and callable(found)
        client: Any = cast("Any", found)() if is_made else found
        if arguments.database is None:
            recording = TurnRecording.load(arguments.recording)
        else:
            recording = _durable_turn(client, arguments)
            client = client.client
        if not isinstance(client, ChatClient):
            msg = f"{arguments.client} must be a ChatClient or a function that returns one"
            raise UsageError(msg)
        request = client.prompt()
        if arguments.model:
            request = request.model(ChatClient.create(arguments.model).model)
        if arguments.system:
            request = request.system(arguments.system)
        replay = replay_turn(recording, request, fork_at=arguments.fork_at)
        if arguments.write_test:
            # Write a test of the turn, and the recording beside it.
            path = Path(arguments.write_test)
            module, _, name = arguments.client.partition(":")
            turn = re.sub(r"\W", "_", Path(arguments.recording).stem)
            recording.save(path.with_name(f"{turn}.json"))
            is_durable = arguments.database is not None
            text = _TEST.format(
                module=module,
                recording=f"{turn}.json",
                name=turn,
                client=f"{module}.{name}{'()' if is_made else ''}{'.client' if is_durable else ''}",
            )
            path.write_text(text, encoding="utf-8")
    except (ChatClientError, ImportError, AttributeError, OSError) as error:
        print(printable(f"chatclient: {error}"), file=sys.stderr)
        return 2
    print(printable(f"{replay}\n"), end="")
    return 0 if replay.difference is None else 1


def _durable_turn(client: Any, arguments: argparse.Namespace) -> TurnRecording:
    """Return the recording of a durable turn.

    Raises:
        UsageError: *client* is not durable, or the turn has not ended.
    """
    from chatclient.durable.client import DurableClient  # noqa: PLC0415 - for this command
    from chatclient.durable.launching import connect  # noqa: PLC0415 - an extra

    if not isinstance(client, DurableClient):
        msg = f"with --database, {arguments.client} must be a DurableClient"
        raise UsageError(msg)
    with connect(arguments.database, application=arguments.application):
        return TurnRecording.of(client.trail(key=arguments.recording))


def _replay_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "chatclient replay",
        description="Replay a recorded turn with the client of today, and show what differs first. "
        "The exit status is 1 if something does.",
    )
    parser.add_argument(
        "recording",
        help="a file that TurnRecording.save has written; with --database, the key of a turn",
    )
    parser.add_argument(
        "client", metavar="MODULE:OBJECT", help="the client, or a function that returns it"
    )
    parser.add_argument("--database", metavar="URL", help="that of durable turns")
    parser.add_argument(
        "--application", default="chatclient", help="the application's name in the database"
    )
    parser.add_argument(
        "--fork-at",
        type=int,
        metavar="N",
        help="the model call, from 1, from which on models and tools are really asked",
    )
    parser.add_argument("--model", help="another model, such as openai:gpt-5-mini")
    parser.add_argument("--system", help="another system text")
    parser.add_argument(
        "--write-test",
        metavar="FILE",
        help="write a test for pytest that replays the turn, and the recording beside it",
    )
    return parser


# --- the client -----------------------------------------------------------------------------


def _client_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
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
        help="a function, an object, or a class to instantiate; repeatable",
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
        help="where the conversation is stored, such as sqlite:///chat.db or redis://localhost; "
        "without it, in this process only",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="run tools that write without asking",
    )
    parser.add_argument(
        "--log",
        choices=("debug", "info", "warning"),
        help="write the log to standard error, from that level on",
    )
    return parser


def _client(
    arguments: argparse.Namespace, resources: ExitStack, approval: ToolApproval
) -> ChatClient:
    """Return the client that *arguments* describe; *approval* is left out with `--yes`."""
    if arguments.log:
        logging.basicConfig(level=arguments.log.upper(), format="%(levelname)s %(message)s")
    builder = ChatClient.builder(arguments.model)
    if arguments.system:
        builder = builder.default_system(arguments.system)
    memory = _memory(arguments.memory, resources)
    tools = [_load_tool(name) for name in arguments.tools]
    if arguments.mcp:
        tools.append(_mcp_tools(arguments.mcp, resources))
    if not arguments.yes:
        builder = builder.tool_calling_manager(ToolCallingManager(interceptors=[approval]))
    client = (
        builder.default_tools(*tools).default_advisors(MessageChatMemoryAdvisor(memory)).build()
    )
    resources.callback(client.close)
    return client


def _load(name: str, option: str) -> Any:
    """Return the object *name*, such as `myapp.tools:WeatherTools`."""
    module, _, path = name.partition(":")
    if not path:
        msg = f"{option} needs MODULE:OBJECT, not {name!r}"
        raise UsageError(msg)
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules in the current directory, as with `python -m`
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _load_tool(name: str) -> Any:
    """Return the object *name*, or an instance if it is a class."""
    value = _load(name, "--tools")
    if not isinstance(value, type):
        return value
    try:
        return value()
    except TypeError as error:
        module, _, path = name.partition(":")
        msg = f"cannot instantiate {path} ({error}); create one in {module}, and pass its name"
        raise UsageError(msg) from error


def _memory(url: str | None, resources: ExitStack) -> MessageWindowChatMemory:
    if url is None:
        return MessageWindowChatMemory()
    # Imported here, because these drivers are rarely needed.
    from chatclient.memory.redis import RedisChatMemoryRepository  # noqa: PLC0415

    repository: ChatMemoryRepository
    if url.startswith("redis"):
        repository = RedisChatMemoryRepository(url)
    else:
        with needed_by("SqlChatMemoryRepository"):
            from chatclient.memory.sql.repository import SqlChatMemoryRepository  # noqa: PLC0415
        repository = SqlChatMemoryRepository(url)
    resources.callback(repository.close)
    return MessageWindowChatMemory(repository)


def _mcp_tools(servers: Sequence[str], resources: ExitStack) -> Any:
    # Imported here, because MCP is an optional dependency.
    from chatclient.mcp.provider import McpToolCallbackProvider  # noqa: PLC0415
    from chatclient.mcp.server import McpServer  # noqa: PLC0415

    def server(number: int, target: str) -> McpServer:
        if target.startswith(("http://", "https://")):
            return McpServer.http(f"mcp{number}", target)
        try:
            command, *arguments = shlex.split(target)
        except ValueError as error:
            msg = f"--mcp needs a URL, or a command as in a shell, not {target!r}"
            raise UsageError(msg) from error
        return McpServer.stdio(f"mcp{number}", command, *arguments)

    found = [server(number, target) for number, target in enumerate(servers, 1)]
    return resources.enter_context(McpToolCallbackProvider(*found))


if __name__ == "__main__":
    raise SystemExit(main())
