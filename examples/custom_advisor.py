"""An advisor of one's own: e-mail addresses never reach the model, and the user never notices.

On the way in each address of the user's becomes a placeholder, which is all that the model and its
tools see; on the way out placeholders become addresses again, also in a stream, where one may come
in pieces.

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
    UserMessage,
)
from chatclient.events import RoundEnded, TextDelta

ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
PLACEHOLDER = re.compile(r"<email-(\d+)>")
UNFINISHED = re.compile(r"<(?:e(?:m(?:a(?:i(?:l(?:-\d*)?)?)?)?)?)?$")


class HideAddresses:
    """Stands outside the tool loop; once per turn."""

    order = -1000
    name = "hide addresses"

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Hide addresses, ask, and put them back."""
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
    """Return *text* with placeholders; *known* learns which stands for what."""

    def placeholder(match: re.Match[str]) -> str:
        return known.setdefault(match[0], f"<email-{len(known) + 1}>")

    return ADDRESS.sub(placeholder, text)


def show(text: str, known: dict[str, str]) -> str:
    """Return *text* with the addresses that its placeholders stand for."""
    addresses = {placeholder: address for address, placeholder in known.items()}
    return PLACEHOLDER.sub(lambda match: addresses.get(match[0], match[0]), text)


if __name__ == "__main__":
    client = ChatClient.builder("local").default_advisors(HideAddresses()).build()
    for piece in client.prompt("Greet ada@example.org by her address.").stream():
        print(piece, end="", flush=True)
    print()
