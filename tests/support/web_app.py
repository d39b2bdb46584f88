"""Clients for tests of frontends, and their endpoints."""

from starlette.applications import Starlette
from starlette.routing import Route

from chatclient import ChatClient, ChatModel, tool
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.memory import MessageWindowChatMemory
from chatclient.tools import ToolApproval, ToolCallingManager
from chatclient.web import WebChat


@tool(effect="read")
def find_trains(city: str) -> list[str]:
    """Find today's trains to a city."""
    return [f"IC 1 to {city}", f"IC 3 to {city}"]


@tool
def book_train(number: str) -> str:
    """Book a seat on a train."""
    return f"Booked a seat on {number}."


def travel_client(
    model: ChatModel, *more: object, memory: MessageWindowChatMemory | None = None
) -> ChatClient:
    """Return a client whose bookings need approval, with further tools and a memory."""
    builder = (
        ChatClient.builder(model)
        .default_tools(find_trains, book_train, *more)
        .tool_calling_manager(ToolCallingManager(interceptors=[ToolApproval()]))
    )
    if memory is not None:
        builder = builder.default_advisors(MessageChatMemoryAdvisor(memory))
    return builder.build()


def endpoints(chat: WebChat) -> Starlette:
    """Return an application with the endpoints of *chat*."""
    return Starlette(
        routes=[
            Route("/ai-sdk", chat.ai_sdk, methods=["POST"]),
            Route("/ai-sdk/{id}/stream", chat.ai_sdk_stream, methods=["GET", "DELETE"]),
            Route("/ag-ui", chat.ag_ui, methods=["POST"]),
        ]
    )
