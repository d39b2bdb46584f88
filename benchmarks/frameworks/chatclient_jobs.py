"""The jobs with chatclient."""

from jobs import HISTORY, Job, compare

from chatclient import AssistantMessage, ChatClient, UserMessage, tool
from chatclient.providers import OpenAIChatModel

MESSAGES = [
    UserMessage(m["content"]) if m["role"] == "user" else AssistantMessage(m["content"])
    for m in HISTORY
]


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def client_of(url: str, tools: bool, history: bool) -> ChatClient:
    """Return a client."""
    builder = ChatClient.builder(OpenAIChatModel("stub", base_url=url))
    return builder.default_tools(*[add] * tools).default_messages(*MESSAGES * history).build()


def ask(url: str, tools: bool, history: bool) -> Job:
    """Return a function that sends a request."""
    client = client_of(url, tools, history)
    return lambda: client.prompt("What is 1 + 2?").acall().content()


def stream(url: str, tools: bool, history: bool) -> Job:
    """Return a function that streams an answer."""
    client = client_of(url, tools, history)

    async def streamed() -> str:
        return "".join([piece async for piece in client.prompt("What is 1 + 2?").astream()])

    return streamed


if __name__ == "__main__":
    compare("chatclient", ask, stream)
