"""Requests that servers send to the client: elicitation, sampling and roots."""

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any

from mcp.client.session import ClientRequestContext
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    AudioContent,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ImageContent,
    ListRootsResult,
    Root,
    SamplingMessage,
    TextContent,
)
from pydantic import FileUrl

from chatclient._internal.logging import described
from chatclient.chain.model_call import ask_model
from chatclient.chat.messages import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.errors import ToolError, UsageError
from chatclient.extend import ON_LOOP, get_logger
from chatclient.mcp.content import read_content
from chatclient.mcp.limits import MessageCounter
from chatclient.mcp.schemas import CHECK_SECONDS, misfits, validator_of
from chatclient.mcp.server import ElicitationHandler, McpElicitation, McpServer

log = get_logger(__name__)

_ENDS = {"stop": "endTurn", "length": "maxTokens"}


def callbacks_of(server: McpServer, calls: Sequence[Context]) -> dict[str, Any]:
    """Return the callbacks for the SDK's client, which rejects requests without a callback.

    Args:
        server: The server.
        calls: The contexts of the calls that run, the newest one last.
    """
    callbacks: dict[str, Any] = {}
    if server.on_elicitation is not None:
        callbacks["elicitation_callback"] = partial(_elicit, server.on_elicitation, server.name)
    if server.sampling is not None:
        counter = MessageCounter(server.limits.samplings)
        callbacks["sampling_callback"] = partial(_sample, server.sampling, server, counter, calls)
    if server.roots:
        callbacks["list_roots_callback"] = partial(_list_roots, server.roots)
    return callbacks


async def _elicit(
    handler: ElicitationHandler,
    server: str,
    _context: ClientRequestContext,
    params: ElicitRequestParams,
) -> ElicitResult | ErrorData:
    try:
        return await _user_answer(handler, server, params)
    except Exception as error:  # noqa: BLE001 - application code; the server must not see the error
        log.warning("mcp elicitation failed", server=server, error=repr(error))
        return ErrorData(code=INTERNAL_ERROR, message="the user could not be asked")


async def _user_answer(
    handler: ElicitationHandler, server: str, params: ElicitRequestParams
) -> ElicitResult:
    """Return the user's answer to the question in *params*.

    Raises:
        UsageError: The handler returned a value of the wrong type, or values that do not fit the
            form.
    """
    if isinstance(params, ElicitRequestFormParams):
        schema = params.requested_schema
        question = McpElicitation(server, params.message, schema=schema)
    else:
        schema = None
        question = McpElicitation(server, params.message, url=params.url)
    answer = await ON_LOOP.invoke(handler, question)
    if answer is None:
        return ElicitResult(action="cancel")
    if answer is False:
        return ElicitResult(action="decline")
    if schema is None and answer is True:
        return ElicitResult(action="accept")
    if schema is None or not isinstance(answer, Mapping):
        wanted = "True, False or None" if schema is None else "the form's values, False or None"
        msg = f"an elicitation handler must return {wanted}, not a {type(answer).__name__}"
        raise UsageError(msg)
    values = {**_defaults(schema), **answer}
    await ON_LOOP.invoke(_check, values, schema)
    return ElicitResult(action="accept", content=values)


def _defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a form proposes."""
    fields: dict[str, Any] = schema.get("properties", {})
    return {name: field["default"] for name, field in fields.items() if "default" in field}


def _check(values: dict[str, Any], schema: dict[str, Any]) -> None:
    """Check that *values* fit the form; the error does not contain them.

    Raises:
        UsageError: They do not, or the schema cannot be checked.
    """
    problems = misfits(validator_of(schema), values, CHECK_SECONDS)
    if problems is None:
        msg = "the form cannot be checked, so nothing is filled in"
        raise UsageError(msg)
    if problems:
        where, rule = problems[0].json_path, problems[0].validator
        msg = f"the values do not fit the form: {where} is against its {rule!r}"
        raise UsageError(msg)


async def _sample(
    model: ChatModel,
    server: McpServer,
    counter: MessageCounter,
    calls: Sequence[Context],
    _context: ClientRequestContext,
    params: CreateMessageRequestParams,
) -> CreateMessageResult | ErrorData:
    counter.add()
    if counter.excess:
        log.warning("mcp sampling refused", server=server.name, limit=server.limits.samplings)
        return ErrorData(code=INTERNAL_ERROR, message="the model was asked too often")
    try:
        prompt = _prompt_of(params)
    except ToolError as error:
        return ErrorData(code=INVALID_PARAMS, message=str(error))
    # The request of a server does not name its call. In the context of one, it counts in a budget.
    context = calls[-1].copy() if calls else None
    try:
        return await asyncio.create_task(_sampled(model, prompt), context=context)
    except Exception as error:  # noqa: BLE001 - the server must not see the error
        log.warning("mcp sampling failed", server=server.name, error=described(error))
        return ErrorData(code=INTERNAL_ERROR, message="the model could not be asked")


async def _sampled(model: ChatModel, prompt: Prompt) -> CreateMessageResult:
    """Return the response of *model*, with at most its default number of tokens."""
    limit, requested = model.options.max_tokens, prompt.options.max_tokens
    if limit is not None and requested is not None and requested > limit:
        prompt = Prompt.of(prompt.messages, prompt.options.mutate(max_tokens=limit))
    response = await ask_model(model, prompt, ON_LOOP)
    return CreateMessageResult(
        role="assistant",
        content=TextContent(text=response.text),
        model=response.metadata.model or model.name,
        stop_reason=_ENDS.get(response.finish_reason or "stop", response.finish_reason),
    )


def _prompt_of(params: CreateMessageRequestParams) -> Prompt:
    """Return the prompt of a sampling request.

    Raises:
        ToolError: It contains something unsupported, such as tools.
    """
    if params.tools:
        msg = "the model is lent without tools"
        raise ToolError(msg)
    messages: list[Message] = []
    if params.system_prompt:
        messages.append(SystemMessage(params.system_prompt))
    messages.extend(map(_message, params.messages))
    options = ChatOptions(
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        stop=tuple(params.stop_sequences) if params.stop_sequences else None,
    )
    return Prompt(messages, options)


def _message(message: SamplingMessage) -> Message:
    content = message.content if isinstance(message.content, Sequence) else [message.content]
    blocks = [b for b in content if isinstance(b, TextContent | ImageContent | AudioContent)]
    if len(blocks) < len(content):
        msg = "the model is lent without tools"
        raise ToolError(msg)
    texts, media = read_content(blocks)
    text = "\n".join(texts)
    if message.role == "user":
        return UserMessage(text, media=media)
    return AssistantMessage(text, media=media)


async def _list_roots(
    roots: Sequence[str | Path], _context: ClientRequestContext
) -> ListRootsResult:
    return ListRootsResult(
        roots=[Root(uri=FileUrl(Path(root).as_uri()), name=Path(root).name) for root in roots]
    )
