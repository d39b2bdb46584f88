"""Tools of LangChain as tools of this library, and the other way round; extra `langchain`."""

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.messages.content import (
    AudioContentBlock,
    FileContentBlock,
    ImageContentBlock,
    PlainTextContentBlock,
    TextContentBlock,
    VideoContentBlock,
)
from langchain_core.tools import BaseTool, BaseToolkit, ToolException
from langchain_core.utils.function_calling import convert_to_openai_function
from pydantic import AliasChoices, AliasPath, BaseModel, PrivateAttr, TypeAdapter, ValidationError

from chatclient.bridges.content_blocks import block_of, media_of
from chatclient.chat.messages import Media, ToolCall
from chatclient.chat.tool import ToolCallback, ToolContext, ToolMetadata, ToolResult
from chatclient.chat.tool_definition import ToolDefinition
from chatclient.errors import ToolArgumentError, ToolError, ToolExecutionError
from chatclient.extend import BLOCKING, ON_LOOP, check_type, drive, dumps_exact, loads
from chatclient.runtime.runtime import Runtime
from chatclient.tools.function.data_tool import DataToolCallback
from chatclient.tools.function.result import data_result
from chatclient.tools.sources import ToolSource, tool_callbacks


def tools_from_langchain(
    *tools: BaseTool | BaseToolkit | Iterable[BaseTool], metadata: ToolMetadata | None = None
) -> list[ToolCallback]:
    """Return tools of LangChain as tools of this library.

    Asynchronous tools run on an event loop, and others in a thread, or on the caller's in blocking
    requests. The artifact of a result is the value of the `ToolExecution`. Injected arguments,
    which the model does not see, get the values of the tool context with their names.

    Args:
        *tools: The tools, toolkits, and collections of tools.
        metadata: How the tools are run; default: as tools that write, with the `return_direct` of
            each tool.

    Raises:
        WrongTypeError: One of them is not a tool of LangChain.
        ToolDefinitionError: Providers do not accept the name or the schema of a tool.
    """
    return [_callback(tool, metadata) for tool in _flat(tools)]


def _flat(tools: Iterable[Any]) -> Iterable[BaseTool]:
    for each in tools:
        if isinstance(each, BaseToolkit):
            yield from each.get_tools()
        elif isinstance(each, list | tuple):
            yield from _flat(each)
        else:
            check_type("a tool of LangChain", each, BaseTool)
            yield each


def _callback(tool: BaseTool, metadata: ToolMetadata | None) -> ToolCallback:
    definition = ToolDefinition(tool.name, tool.description, _visible_schema(tool))
    own = ToolMetadata(return_direct=tool.return_direct)
    run = _run_async if _is_async(tool) else _run
    return DataToolCallback(definition, partial(run, tool), metadata or own)


def _visible_schema(tool: BaseTool) -> Mapping[str, Any]:
    """Return the schema of the arguments that the model writes, as LangChain sends it.

    A JSON Schema may contain injected arguments, which are left out as well.
    """
    schema = dict(convert_to_openai_function(tool)["parameters"])
    hidden = tool._injected_args_keys  # noqa: SLF001 - also without a model of the arguments
    shown = {k: v for k, v in schema.get("properties", {}).items() if k not in hidden}
    required = [each for each in schema.get("required", ()) if each not in hidden]
    return schema | {"properties": shown, "required": required}


def _is_async(tool: BaseTool) -> bool:
    """Return whether *tool* runs without a thread."""
    if hasattr(tool, "coroutine"):
        return getattr(tool, "coroutine", None) is not None
    return type(tool)._arun is not BaseTool._arun  # noqa: SLF001 - overridden, if it is async


async def _run_async(tool: BaseTool, call: ToolCall, context: ToolContext) -> ToolResult:
    with _Failures(tool.name):
        return _result(await tool.ainvoke(_arguments(tool, call, context)))


def _run(tool: BaseTool, call: ToolCall, context: ToolContext) -> ToolResult:
    with _Failures(tool.name):
        return _result(tool.invoke(_arguments(tool, call, context)))


class _Failures:
    """Raises the errors that LangChain has for the model as those of this library."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, ToolException):
            raise ToolError(str(error)) from error
        if isinstance(error, ValidationError):
            details = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            msg = "\n- ".join((f"The arguments for {self._name} do not fit:", *details))
            raise ToolArgumentError(msg, tool_name=self._name, details=details) from error


def _arguments(tool: BaseTool, call: ToolCall, context: ToolContext) -> Any:
    """Return the call as LangChain represents it, with injected arguments.

    LangChain takes them from the call, so that a model that guesses their names could write them.
    """
    schema: Any = tool.args_schema
    visible = _visible_schema(tool)
    shown = visible["properties"].keys()
    injected = set(tool._injected_args_keys)  # noqa: SLF001 - as above
    hidden = set(injected)
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        for name, field in schema.model_fields.items():
            alias = field.validation_alias
            choices = alias.choices if isinstance(alias, AliasChoices) else [alias, field.alias]
            paths = (each.path[0] if isinstance(each, AliasPath) else each for each in choices)
            names = {name, *(each for each in paths if isinstance(each, str))}
            if names.isdisjoint(shown):
                injected |= {name, field.alias or name}
                hidden |= names
    written = {
        name: value
        for name, value in loads(call.arguments).items()
        if name in shown or (visible.get("additionalProperties") and name not in hidden)
    }
    given = {name: context[name] for name in injected if name in context}
    # LangChain returns a message, with the artifact, only for a call with an id.
    id = call.id or "call"
    return {"type": "tool_call", "id": id, "name": tool.name, "args": written | given}


def _result(message: Any) -> ToolResult:
    """Return a `ToolMessage` as a result; what else a tool may return, as text."""
    if not isinstance(message, ToolMessage):
        return data_result(message)
    media: tuple[Media, ...] = ()
    if isinstance(message.content, str):
        text = message.content
    else:
        try:
            blocks = message.content_blocks
        except Exception:  # noqa: BLE001 - of a conversion by LangChain, which expects valid blocks
            blocks = []
        parts = [_part(block) for block in blocks]
        if not parts or None in parts:
            text = data_result(message.content).text
        else:
            text = "\n".join(each for each in parts if isinstance(each, str))
            media = tuple(each for each in parts if isinstance(each, Media))
    return ToolResult(text, media, message.status == "error", value=message.artifact)


def _part(block: Any) -> str | Media | None:
    """Return the text or the media of a content block; None if it is not valid."""
    kind = block["type"]
    if kind == "non_standard":  # of a provider
        return data_result(block["value"]).text
    if kind not in _BLOCKS:
        return data_result(block).text
    model = _BLOCKS[kind]
    if not block.keys() <= {*model.__annotations__, *_ALSO}:
        return None
    try:
        _adapter(kind).validate_python(block)
    except ValidationError:
        return None
    if kind in ("text", "text-plain"):
        text: str | None = block.get("text")
        return text
    return media_of(block)


_BLOCKS: Mapping[str, Any] = {
    "text": TextContentBlock,
    "text-plain": PlainTextContentBlock,
    "image": ImageContentBlock,
    "audio": AudioContentBlock,
    "video": VideoContentBlock,
    "file": FileContentBlock,
}
_ALSO = ("cache_control", "filename")  # fields that providers and their integrations add


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_BLOCKS[kind])


def to_langchain(
    *tools: ToolSource, tool_context: Mapping[str, Any] | None = None
) -> list[BaseTool]:
    """Return tools of this library as tools of LangChain, for its agents and chains.

    The value that a tool returns is the artifact of the message. Errors of a tool are
    `ToolException`s, whose text is for the model.

    Args:
        *tools: What `.tools(...)` takes, apart from names and providers that need a request.
        tool_context: The values for `ToolContext`.

    Raises:
        ToolDefinitionError: A source contains no tool, or a tool is invalid.
    """
    values = dict(tool_context or {})
    return [_our_tool(callback, values) for callback in tool_callbacks(*tools)]


def _our_tool(callback: ToolCallback, values: Mapping[str, Any]) -> BaseTool:
    definition = callback.definition
    made = _OurTool(
        name=definition.name,
        description=definition.description,
        args_schema=dict(definition.input_schema),
        return_direct=callback.metadata.return_direct is True,
        response_format="content_and_artifact",
        handle_tool_error=True,
    )
    made._callback, made._values = callback, values  # noqa: SLF001 - private fields of a model
    return made


class _OurTool(BaseTool):
    """A tool of this library; unlike those of a `StructuredTool`, its parameters have any names."""

    _callback: ToolCallback = PrivateAttr()
    _values: Mapping[str, Any] = PrivateAttr()

    def _run(self, /, **arguments: Any) -> tuple[Any, Any]:
        return drive(self._invoke(arguments, BLOCKING))

    async def _arun(self, /, **arguments: Any) -> tuple[Any, Any]:
        return await self._invoke(arguments, ON_LOOP)

    async def _invoke(self, arguments: Mapping[str, Any], runtime: Runtime) -> tuple[Any, Any]:
        context = ToolContext(self._values, runtime=runtime, tool_name=self.name)
        try:
            result = await self._callback.invoke(dumps_exact(arguments), context)
        except (ToolError, ToolExecutionError) as error:
            raise ToolException(str(error)) from error
        if result.is_error:
            raise ToolException(result.text)
        return _content(result), result.value


def _content(result: ToolResult) -> str | list[Any]:
    if not result.media:
        return result.text
    return [{"type": "text", "text": result.text}, *map(block_of, result.media)]
