"""A chat service: answers streamed to the browser, memory in PostgreSQL, approval of tools.

    pip install 'chatclient[postgres]' fastapi uvicorn
    export DATABASE_URL=postgresql+psycopg://postgres@127.0.0.1:5432/test
    uvicorn --factory examples.chat_service.app:create_app

Then open http://127.0.0.1:8000. Without DATABASE_URL it keeps its conversations in SQLite.

Whoever knows a conversation's id can read it; the page makes one up that nobody can guess. A
service with users of its own derives the id from who is logged in.
"""

import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import fastapi
import sqlalchemy as sa
from fastapi import Body, FastAPI, HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, StreamingResponse
from sqlalchemy.exc import IntegrityError

from chatclient import ChatClient, ChatClientRequestSpec, ChatModel, TextDelta, ToolCallFinished
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.errors import ChatClientError, UsageError
from chatclient.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from chatclient.tools import PendingTurn, ToolApproval, ToolCallingManager, tool

PAGE = Path(__file__).with_name("page.html")
ID_LENGTH = 64

ConversationId = Annotated[str, fastapi.Path(max_length=ID_LENGTH)]

log = logging.getLogger(__name__)


@tool(effect="read")
def find_trains(city: str) -> list[str]:
    """Find today's trains to a city."""
    return [f"IC 1 to {city}, 09:14, 39 EUR", f"IC 3 to {city}, 10:02, 29 EUR"]


@tool
def book_train(number: str) -> str:
    """Book a seat on a train, such as `IC 1`."""
    return f"Booked a seat on {number}."


class PendingTurns:
    """Stores turns that wait for approval, at most one per conversation."""

    def __init__(self, engine: sa.Engine, table: str) -> None:
        self._engine = engine
        metadata = sa.MetaData()
        self._table = sa.Table(
            table,
            metadata,
            sa.Column("conversation", sa.String(ID_LENGTH), primary_key=True),
            sa.Column("turn", sa.Text, nullable=False),
        )
        metadata.create_all(engine)

    def put(self, conversation: str, turn: PendingTurn) -> bool:
        """Store a turn; return False if another turn of the conversation is pending."""
        row = {"conversation": conversation, "turn": turn.to_json()}
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(self._table).values(row))
        except IntegrityError:
            return False
        return True

    def get(self, conversation: str) -> PendingTurn | None:
        """Return the pending turn of a conversation, if any."""
        query = sa.select(self._table.c.turn).where(self._table.c.conversation == conversation)
        with self._engine.connect() as connection:
            turn = connection.scalar(query)
        return None if turn is None else PendingTurn.from_json(turn)

    def take(self, conversation: str) -> bool:
        """Delete the pending turn; return True for one caller only."""
        with self._engine.begin() as connection:
            gone = connection.execute(
                sa.delete(self._table).where(self._table.c.conversation == conversation)
            )
        return gone.rowcount == 1


class ChatService:
    """The service behind the page: a client, its memory and the pending turns.

    Args:
        model: The model, or its name.
        database: Where conversations are kept.
        prefix: What the names of the tables begin with.
    """

    def __init__(self, model: ChatModel | str, database: str, prefix: str) -> None:
        self.engine = sa.create_engine(database)
        self.pending = PendingTurns(self.engine, f"{prefix}pending_turn")
        repository = SqlChatMemoryRepository(self.engine, table_prefix=prefix)
        self.memory = MessageWindowChatMemory(repository)
        self.client = (
            ChatClient.builder(model)
            .default_system("You plan journeys. Be brief.")
            .default_tools(find_trains, book_train)
            .default_advisors(MessageChatMemoryAdvisor(self.memory))
            .tool_calling_manager(ToolCallingManager(interceptors=[ToolApproval()]))
            .build()
        )

    async def close(self) -> None:
        """Close connections."""
        await self.client.aclose()
        self.engine.dispose()

    def read(self, conversation: ConversationId) -> dict[str, Any]:
        """Return the messages of a conversation and its pending calls."""
        turn = self.pending.get(conversation)
        asked = [message for message in turn.messages if message.role == "user"] if turn else []
        messages = [*self.memory.get(conversation), *asked[-1:]]
        return {
            "messages": [
                {"role": message.role, "text": message.text}
                for message in messages
                if message.role in ("user", "assistant") and message.text
            ],
            "waiting": waiting(turn) if turn else {},
        }

    async def say(
        self, conversation: ConversationId, text: Annotated[str, Body(embed=True)]
    ) -> StreamingResponse:
        """Stream the answer to *text*."""
        if await run_in_threadpool(self.pending.get, conversation):
            raise HTTPException(409, "Decide about the tool calls first.")
        try:
            request = self.client.prompt(text).conversation(conversation)
        except UsageError as error:
            raise HTTPException(422, str(error)) from error
        return self._streaming(conversation, request)

    async def decide(
        self, conversation: ConversationId, decisions: dict[str, bool]
    ) -> StreamingResponse:
        """Resume the pending turn with *decisions* and stream the answer."""
        turn = await run_in_threadpool(self.pending.get, conversation)
        if turn is None:
            raise HTTPException(404, "Nothing waits for a decision.")
        try:
            request = self.client.resume(turn, decisions)
        except UsageError as error:
            raise HTTPException(422, str(error)) from error
        if not await run_in_threadpool(self.pending.take, conversation):
            raise HTTPException(409, "Somebody else has decided.")
        return self._streaming(conversation, request)

    def _streaming(self, conversation: str, request: ChatClientRequestSpec) -> StreamingResponse:
        return StreamingResponse(self._told(conversation, request), media_type="text/event-stream")

    async def _told(self, conversation: str, request: ChatClientRequestSpec) -> AsyncIterator[str]:
        """Yield server-sent events; the request is cancelled if the browser disconnects."""
        try:
            async with request.astream() as stream:
                async for event in stream.events():
                    match event:
                        case TextDelta(text=text):
                            yield sent("text", text=text)
                        case ToolCallFinished(tool_call=call, response=response):
                            result = {"given": call.arguments, "result": response.data}
                            yield sent("tool", name=call.name, **result)
                        case _:
                            pass
            if turn := stream.pending_turn():
                if not await run_in_threadpool(self.pending.put, conversation, turn):
                    yield sent("error", message="Decide about the other tool calls, and ask again.")
                    return
                yield sent("approval", calls=waiting(turn))
            yield sent("done")
        except ChatClientError as error:
            yield sent("error", message=f"{type(error).__name__}: {error}")
        except Exception:  # the browser always gets a last event
            log.exception("a turn failed")
            yield sent("error", message="Something went wrong here.")


def sent(kind: str, **data: Any) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps({'kind': kind} | data)}\n\n"


def waiting(turn: PendingTurn) -> dict[str, dict[str, str]]:
    """Return the pending calls as JSON for the page."""
    return {
        id: {"name": call.name, "given": call.arguments} for id, call in turn.to_decide().items()
    }


def create_app(
    model: ChatModel | str | None = None, *, database: str | None = None, prefix: str = "chat_"
) -> FastAPI:
    """Return the service as an application.

    Args:
        model: The model; default: that of CHATCLIENT_MODEL, else the local one.
        database: Where conversations are kept; default: DATABASE_URL, else a file of SQLite.
        prefix: What the names of the tables begin with.
    """
    service = ChatService(
        model or os.environ.get("CHATCLIENT_MODEL", "local"),
        database or os.environ.get("DATABASE_URL", "sqlite:///chat.db"),
        prefix,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(title="Chat", lifespan=lifespan)
    app.get("/")(lambda: FileResponse(PAGE))
    app.get("/conversations/{conversation}")(service.read)
    app.post("/conversations/{conversation}")(service.say)
    app.post("/conversations/{conversation}/decisions")(service.decide)
    return app
