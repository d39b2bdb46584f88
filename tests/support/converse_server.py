"""A server of Bedrock's Converse API, which verifies signatures; its responses and streams."""

import hashlib
import hmac
import json
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote
from zlib import crc32

from tests.support.loopback import LoopbackServer, as_json
from tests.support.servers import Reply

Json = dict[str, Any]


def response(*blocks: Any, stop: str = "end_turn", **more: Any) -> Json:
    """Return a response; a text is a separate block."""
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
    return message_with(encoded, payload)


def message_with(encoded: bytes, payload: bytes) -> bytes:
    """Return a message with *encoded* headers."""
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


# --- the server -----------------------------------------------------------------------------

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(\S+?)/(\S+), SignedHeaders=(\S+), Signature=(\S+)"
)


def signature_problem(path: str, headers: dict[str, str], body: bytes, secret: str) -> str | None:
    """Return why AWS would refuse the signature of a request, or None.

    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    """
    match = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if match is None:
        return "not signed"
    scope, names, signature = match[2], match[3].split(";"), match[4]
    if not {"host", "x-amz-date"}.issubset(names) or not scope.endswith("/bedrock/aws4_request"):
        return f"wrong scope or headers: {scope}, {names}"
    lines = [f"{name}:{headers[name]}" for name in names]
    canonical = "\n".join(
        ["POST", quote(path), "", *lines, "", match[3], hashlib.sha256(body).hexdigest()]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{digest}"
    key = f"AWS4{secret}".encode()
    for step in scope.split("/"):
        key = hmac.digest(key, step.encode(), "sha256")
    expected = hmac.digest(key, to_sign.encode(), "sha256").hex()
    return None if hmac.compare_digest(expected, signature) else "wrong signature"


class ConverseServer:
    """Returns its answers in order, repeating the last, to requests with a valid signature.

    An answer may be a function of the request's headers.

    Attributes:
        requests: The bodies of the accepted requests.
        headers: The headers of all requests.
        paths: The paths of all requests.
        valid_tokens: The session tokens that have not expired; an empty one is no token.
    """

    def __init__(self, *answers: Any, secret: str) -> None:
        self._answers = list(answers)
        self._secret = secret
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.valid_tokens = {""}
        self._server = LoopbackServer(self._reply, raw=True)

    @property
    def url(self) -> str:
        return self._server.url

    def _reply(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        self.headers.append(headers)
        self.paths.append(path)
        if not headers.get("authorization", "").startswith("Bearer "):
            if problem := signature_problem(path, headers, body, self._secret):
                return as_json({"message": problem}, 403)
            if headers.get("x-amz-security-token", "") not in self.valid_tokens:
                kind = {"x-amzn-errortype": "ExpiredTokenException:http://internal"}
                text = "The security token included in the request is expired"
                return as_json({"message": text}, 403, **kind)
        self.requests.append(json.loads(body))
        reply: Any = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if callable(reply):
            reply = reply(headers)
        if isinstance(reply, Reply):
            return reply
        if path.endswith("/converse-stream"):
            return Reply(as_stream(reply), content_type="application/vnd.amazon.eventstream")
        return as_json(reply)

    def close(self) -> None:
        self._server.close()
