"""A chat service whose turns survive restarts, closed browsers and approvals that take days.

    pip install 'chatclient[dbos,postgres,web]' fastapi
    export DATABASE_URL=postgresql+psycopg://postgres@127.0.0.1:5432/chat
    uvicorn --factory examples.chat_service.app:create_app

Then open http://127.0.0.1:8000. Without DATABASE_URL it uses files of SQLite. The database belongs
to this service: processes of the same service continue each other's turns.

Whoever knows a conversation's id can read it; the page makes one up that nobody can guess. A
service with users of its own derives the id from who is logged in: `WebChat(conversation=...)`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import sqlalchemy as sa
from fastapi import FastAPI

from chatclient import ChatClient, ChatModel, tool
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.durable import durable, launch
from chatclient.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from chatclient.tools import ToolApproval, ToolCallingManager
from chatclient.web import WebChat, web_app


@tool(effect="read")
def find_trains(city: str) -> list[str]:
    """Find today's trains to a city."""
    return [f"IC 1 to {city}, 09:14, 39 EUR", f"IC 3 to {city}, 10:02, 29 EUR"]


@tool
def book_train(number: str) -> str:
    """Book a seat on a train, such as `IC 1`."""
    return f"Booked a seat on {number}."


def create_app(
    model: ChatModel | str | None = None,
    *,
    database: str | None = None,
    takeover_seconds: float = 10.0,
) -> FastAPI:
    """Return the service as an application.

    Args:
        model: The model; default: that of CHATCLIENT_MODEL, else the local one.
        database: Where conversations and turns are kept; default: DATABASE_URL, else SQLite.
        takeover_seconds: After how many seconds the turns of a process that was killed continue.
    """
    url = database or os.environ.get("DATABASE_URL", "sqlite:///chat.db")
    # SQLite has one writer at a time, so the turns have a file of their own.
    turns = f"{url}-turns" if url.startswith("sqlite") else url
    engine = sa.create_engine(url)
    memory = MessageWindowChatMemory(SqlChatMemoryRepository(engine))
    client = (
        ChatClient.builder(model or os.environ.get("CHATCLIENT_MODEL", "local"))
        .default_system("You plan journeys. Be brief.")
        .default_tools(find_trains, book_train)
        .default_advisors(MessageChatMemoryAdvisor(memory))
        .tool_calling_manager(ToolCallingManager(interceptors=[ToolApproval()]))
        .build()
    )
    chat = WebChat(durable(client, name="chat"))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with launch(turns, takeover_seconds=takeover_seconds):
            yield
        await client.aclose()
        engine.dispose()

    app = FastAPI(title="Chat", lifespan=lifespan)
    app.mount("/", web_app(chat))
    return app
