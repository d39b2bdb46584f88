"""Requests to Gemini: options, messages and tools in its form; no I/O."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient.errors import UsageError
from chatclient.json import loads
from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    Part,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.continuations import Continuation
from chatclient.providers.fields import (
    arguments_in,
    called_name,
    fields_of,
    overlaid,
    unsendable,
)
from chatclient.providers.gemini_decoding import INVENTED_ID, beside_content
from chatclient.providers.media import base64_of, shown_by_tool
from chatclient.providers.wire_cache import kept_wire
from chatclient.response import ChatResponse
from chatclient.tool import ToolDefinition

# The value that Google documents for calls that another model made: without any, they are refused.
_FOREIGN_SIGNATURE = "skip_thought_signature_validator"


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """In what the generations of Gemini models differ.

    Attributes:
        media_in_results: Whether media that a tool returned go inside its function response;
            with older models they stand beside it.
        checks_signatures: Whether the first of several function calls has to have a thought
            signature.
    """

    media_in_results: bool = False
    checks_signatures: bool = False


UP_TO_2 = Dialect()
FROM_3 = Dialect(media_in_results=True, checks_signatures=True)

_FROM_3 = re.compile(r"gemini-(?:[3-9]|\d{2}|[a-z-]*latest$)")


def dialect_of(model: str) -> Dialect:
    """Return the dialect of *model*, as far as its name tells."""
    return FROM_3 if _FROM_3.search(model) else UP_TO_2


# --- options --------------------------------------------------------------------------------

_GENERATION = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "max_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "seed": "seed",
    "candidate_count": "candidateCount",
    "response_mime_type": "responseMimeType",
    "response_modalities": "responseModalities",
    "response_logprobs": "responseLogprobs",
    "logprobs": "logprobs",
    "media_resolution": "mediaResolution",
    "speech_config": "speechConfig",
    "image_config": "imageConfig",
}
_THINKING = {
    "thinking_budget": "thinkingBudget",
    "thinking_level": "thinkingLevel",
    "include_thoughts": "includeThoughts",
}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


def encode_options(options: ChatOptions) -> dict[str, Any]:
    """Return all of a request but its messages."""
    generation = fields_of(options, _GENERATION)
    if thinking := fields_of(options, _THINKING):
        generation["thinkingConfig"] = thinking
    if options.output_schema is not None:
        generation["responseMimeType"] = "application/json"
        generation["responseJsonSchema"] = options.output_schema
    body = fields_of(options, {"cached_content": "cachedContent", "labels": "labels"})
    if generation:
        body["generationConfig"] = generation
    if thresholds := getattr(options, "safety_settings", None):
        body["safetySettings"] = [
            {"category": category, "threshold": threshold}
            for category, threshold in thresholds.items()
        ]
    body.update(_tools(options))
    return overlaid(body, options.extra)


def _tools(options: ChatOptions) -> dict[str, Any]:
    definitions = [callback.definition for callback in options.tool_callbacks or ()]
    tools: list[Any] = [dict(tool) for tool in getattr(options, "server_tools", None) or ()]
    if definitions:
        tools.insert(0, {"functionDeclarations": [_declaration(d) for d in definitions]})
    body: dict[str, Any] = {"tools": tools} if tools else {}
    config = _calling_config(options.tool_choice, definitions) if definitions else None
    if config:
        body["toolConfig"] = {"functionCallingConfig": config}
    return body


def _declaration(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "description": definition.description,
        "parametersJsonSchema": definition.input_schema,
    }


def _calling_config(choice: str | None, definitions: Iterable[ToolDefinition]) -> Any:
    if choice in (None, "auto") and any(definition.strict for definition in definitions):
        return {"mode": "VALIDATED"}
    if choice is None or choice in _MODES:
        return choice and {"mode": _MODES[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def _with_token(prompt: Prompt, answer: ChatResponse) -> Prompt | None:
    """Return the same request again, with the token of where its answer goes on."""
    if len(answer.generations) != 1:
        return None
    generation = answer.generations[0]
    token = generation.metadata.get("continuationToken")
    if not token or generation.native_finish_reason != _TO_BE_CONTINUED:
        return None
    extra = {**prompt.options.extra, "continuationToken": token}
    return Prompt.of(prompt.messages, prompt.options.mutate(extra=extra))


_TO_BE_CONTINUED = "CONTINUATION"
LONG_ANSWERS = Continuation(_TO_BE_CONTINUED, _with_token)
"""How Gemini is asked to go on with an answer that is too long for one request."""

# --- messages -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EncodedConversation:
    """Messages as they are sent, kept because the next request begins with the same ones.

    Attributes:
        messages: Which messages.
        dialect: In whose form.
        system: The parts of the system instruction.
        contents: The contents.
        answers_tools: Whether the last content is what tools answered.
    """

    messages: tuple[Message, ...] = ()
    dialect: Dialect = UP_TO_2
    system: bytes = b""
    contents: bytes = b""
    answers_tools: bool = False

    def continued(self, messages: tuple[Message, ...], dialect: Dialect) -> "EncodedConversation":
        """Return *messages* as they are sent, of which these may be the beginning."""
        size = len(self.messages)
        goes_on = dialect is self.dialect and messages[:size] == self.messages
        known = self if goes_on else EncodedConversation()
        system, contents, answers_tools = [known.system], [known.contents], known.answers_tools
        for message in messages[len(known.messages) :]:
            parts = kept_wire(message, dialect, encode_message)
            if not parts:  # a content without parts would be refused
                continue
            if message.role == "system":
                system.append(parts)
                continue
            if answers_tools and message.role == "tool":
                # The responses to one round of calls have to be in one content.
                contents[-1] = b"%b,%b]}" % (contents[-1][:-2], parts)
                continue
            role = b"model" if message.role == "assistant" else b"user"
            contents.append(b'{"role":"%b","parts":[%b]}' % (role, parts))
            answers_tools = message.role == "tool"
        return EncodedConversation(
            messages,
            dialect,
            b",".join(filter(None, system)),
            b",".join(filter(None, contents)),
            answers_tools,
        )


def encode_message(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    """Return the parts of *message* as the API wants them."""
    match message:
        case SystemMessage():
            return [{"text": message.text}] if message.text else []
        case UserMessage():
            return [part for p in message.parts if (part := _part(p)) is not None]
        case AssistantMessage():
            parts = [part for p in message.parts if (part := _part(p)) is not None]
            return _sign(parts) if dialect.checks_signatures else parts
        case ToolResponseMessage():
            return _results(message.responses, dialect)
        case _:
            raise unsendable(message)


def _part(part: Part) -> dict[str, Any] | None:
    match part:
        case str():
            return {"text": part} if part else None
        case Media():
            return _media(part)
        case ToolCall():
            return _function_call(part)
        case Reasoning(provider="gemini"):
            return _thought(part)
        case ProviderPart(provider="gemini"):
            return dict(part.data)
        case ProviderPart(text=text) if text:
            return {"text": text}
        case _:
            return None  # what other providers thought, or keep to themselves


def _media(media: Media) -> dict[str, Any]:
    beside = beside_content(media.metadata)
    content = base64_of(media)
    if content is not None:
        return {"inlineData": {"mimeType": media.mime_type, "data": content}, **beside}
    if not media.data:
        msg = f"Gemini finds files by their URI, not by an id such as {media.id!r}"
        raise UsageError(f"{msg}; pass the URI as the data, Media({media.mime_type!r}, uri)")
    return {"fileData": {"mimeType": media.mime_type, "fileUri": media.data}, **beside}


def _thought(part: Reasoning) -> dict[str, Any]:
    if part.data is not None:
        return dict(part.data)
    thought: dict[str, Any] = {"text": part.text, "thought": True}
    return thought if part.signature is None else {**thought, "thoughtSignature": part.signature}


def _function_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": called_name(call.name), "args": arguments_in(call.arguments)}
    return {"functionCall": _with_id(function, call.id), **beside_content(call.metadata)}


def _with_id(function: dict[str, Any], id: str) -> dict[str, Any]:
    return {"id": id, **function} if id and not id.startswith(INVENTED_ID) else function


def _sign(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = [part for part in parts if "functionCall" in part]
    if calls and not any("thoughtSignature" in part for part in calls):
        calls[0]["thoughtSignature"] = _FOREIGN_SIGNATURE
    return parts


def _results(responses: Sequence[ToolResponse], dialect: Dialect) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    for response in responses:
        name = called_name(response.name)
        function: dict[str, Any] = {"name": name, "response": _result(response)}
        media, told = shown_by_tool(response.media, _media)
        if media and dialect.media_in_results:
            function["parts"] = media
        elif media:
            if len(responses) > 1:
                beside.append({"text": f"Content returned by tool {response.name}:"})
            beside.extend(media)
        beside.extend({"text": words} for words in told)
        parts.append({"functionResponse": _with_id(function, response.id)})
    return [*parts, *beside]


def _result(response: ToolResponse) -> dict[str, Any]:
    """Return a tool's answer as an object, which the API insists on."""
    try:
        value = loads(response.data)
    except ValueError:
        value = response.data
    if response.is_error:
        return value if isinstance(value, dict) and "error" in value else {"error": value}
    return value if isinstance(value, dict) else {"result": value}
