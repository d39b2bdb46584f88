"""Responses and streams of Bedrock's Converse API."""

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

Json = dict[str, Any]


def response(*blocks: Any, stop: str = "end_turn", **more: Any) -> Json:
    """Return a response; a text is a block of its own."""
    content = [{"text": block} if isinstance(block, str) else block for block in blocks]
    usage = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": stop,
        "usage": usage,
        "metrics": {"latencyMs": 5},
        **more,
    }


def message(payload: bytes, **headers: str) -> bytes:
    """Return a message of an event stream; *headers* without their colon, dashes as underscores."""
    encoded = b"".join(
        _header(f":{name.replace('_', '-')}", value) for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(encoded) + len(payload), len(encoded))
    start = prelude + struct.pack("!I", crc32(prelude)) + encoded + payload
    return start + struct.pack("!I", crc32(start))


def _header(name: str, value: str) -> bytes:
    head = struct.pack(f"!B{len(name)}sB", len(name), name.encode(), 7)
    return head + struct.pack("!H", len(value)) + value.encode()


def event(kind: str, payload: Json) -> bytes:
    return message(json.dumps(payload).encode(), message_type="event", event_type=kind)


def exception(kind: str, text: str) -> bytes:
    payload = json.dumps({"message": text}).encode()
    return message(payload, message_type="exception", exception_type=kind)


def events_of(whole: Json) -> list[tuple[str, Json]]:
    """Return the events of a response as a stream."""
    return list(_events_of(whole))


def _events_of(whole: Json) -> Iterator[tuple[str, Json]]:
    yield "messageStart", {"role": "assistant"}
    for index, block in enumerate(whole["output"]["message"]["content"]):
        start, deltas = _parts(block)
        if start:
            yield "contentBlockStart", {"contentBlockIndex": index, "start": start}
        for delta in deltas:
            yield "contentBlockDelta", {"contentBlockIndex": index, "delta": delta}
        yield "contentBlockStop", {"contentBlockIndex": index}
    yield "messageStop", {"stopReason": whole["stopReason"]}
    yield "metadata", {key: whole[key] for key in ("usage", "metrics", "trace") if key in whole}


def _parts(block: Json) -> tuple[Json, Iterable[Json]]:
    """Return the start of a block, and its deltas."""
    match block:
        case {"text": text}:
            words = text.split(" ")
            return {}, [{"text": f" {word}" if at else word} for at, word in enumerate(words)]
        case {"toolUse": {"input": arguments, **start}}:
            text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
            pieces = (text[:3], text[3:])
            return {"toolUse": start}, [{"toolUse": {"input": piece}} for piece in pieces]
        case {"toolResult": {"content": content, **start}}:
            return {"toolResult": start}, [{"toolResult": content}]
        case {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}:
            deltas = ({"text": text[:9]}, {"text": text[9:]}, {"signature": signature})
            return {}, [{"reasoningContent": delta} for delta in deltas]
        case {"citationsContent": content}:
            texts = [{"text": each["text"]} for each in content.get("content", ())]
            return {}, [*({"citation": each} for each in content["citations"]), *texts]
        case {"image": {"source": source, **start}}:
            return {"image": start}, [{"image": {"source": source}}]
        case _:
            return {}, [block]


def as_stream(whole: Json) -> bytes:
    return b"".join(event(kind, payload) for kind, payload in events_of(whole))
