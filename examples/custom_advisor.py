"""A custom advisor that hides e-mail addresses from the model.

Addresses in user messages are replaced by placeholders before the model and its tools see them.
Placeholders in the answer are replaced by the addresses, also in streams, where a placeholder may
be split between chunks.

    python examples/custom_advisor.py
"""

import re
from typing import Any

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Message,
    Next,
    RoundEnded,
    TextDelta,
    UserMessage,
)

ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
PLACEHOLDER = re.compile(r"<email-(\d+)>")
UNFINISHED = re.compile(r"<(?:e(?:m(?:a(?:i(?:l(?:-\d*)?)?)?)?)?)?$")


class HideAddresses:
    """Runs once per turn, outside the tool loop."""

    order = -1000
    name = "hide addresses"

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Hide addresses in the request and restore them in the response."""
        known: dict[str, str] = {}

        def hidden(message: Message) -> Message:
            if isinstance(message, UserMessage):
                return message.mutate(text=hide(message.text, known))
            return message

        prompt = request.prompt.with_messages(map(hidden, request.prompt.messages))
        held = ""

        async def emit(event: Any) -> None:
            nonlocal held
            if isinstance(event, TextDelta):
                text = held + event.text
                cut = UNFINISHED.search(text)
                held = text[cut.start() :] if cut else ""
                event = TextDelta(show(text.removesuffix(held), known))
            elif isinstance(event, RoundEnded) and held:
                await request.runtime.emit(TextDelta(held))
                held = ""
            await request.runtime.emit(event)

        runtime = request.runtime.with_emitter(emit)
        response = await call_next(request.mutate(prompt=prompt, runtime=runtime))
        answer = response.chat_response.with_text(lambda text: show(text, known))
        return response.mutate(chat_response=answer)


def hide(text: str, known: dict[str, str]) -> str:
    """Return *text* with placeholders, which are added to *known*."""

    def placeholder(match: re.Match[str]) -> str:
        return known.setdefault(match[0], f"<email-{len(known) + 1}>")

    return ADDRESS.sub(placeholder, text)


def show(text: str, known: dict[str, str]) -> str:
    """Return *text* with placeholders replaced by their addresses."""
    addresses = {placeholder: address for address, placeholder in known.items()}
    return PLACEHOLDER.sub(lambda match: addresses.get(match[0], match[0]), text)


if __name__ == "__main__":
    client = ChatClient.builder("local").default_advisors(HideAddresses()).build()
    for piece in client.prompt("Greet ada@example.org by her address.").stream():
        print(piece, end="", flush=True)
    print()
