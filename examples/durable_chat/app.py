"""A chat service whose turns survive: restarts, closed browsers, and approvals that take days.

    pip install 'chatclient[dbos,postgres]' fastapi uvicorn
    export DATABASE_URL=postgresql+psycopg://postgres@127.0.0.1:5432/chat
    uvicorn --factory examples.durable_chat.app:create_app

Then open http://127.0.0.1:8000. Without DATABASE_URL it uses files of SQLite. The database belongs
to this service: processes of the same service continue each other's turns.

Whoever knows a conversation's id can read it; the page makes one up that nobody can guess. A
service with users of its own derives the id from who is logged in.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import fastapi
import sqlalchemy as sa
from fastapi import Body, FastAPI, HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, StreamingResponse
from sqlalchemy.exc import IntegrityError

from chatclient import (
    ApprovalNeeded,
    ChatClient,
    ChatModel,
    TextDelta,
    ToolCallFinished,
    UserMessage,
)
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.durable import DurableTurn, RoundRestarted, durable, launch
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


class LastTurns:
    """Stores the key and the question of the last turn of each conversation."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._table = sa.Table(
            "last_turn",
            sa.MetaData(),
            sa.Column("conversation", sa.String(ID_LENGTH), primary_key=True),
            sa.Column("key", sa.String(32), nullable=False),
            sa.Column("question", sa.Text, nullable=False),
        )
        self._table.create(engine, checkfirst=True)

    def get(self, conversation: str) -> tuple[str, str] | None:
        """Return the key and the question, or None."""
        columns = self._table.c
        query = sa.select(columns.key, columns.question).where(columns.conversation == conversation)
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else (row.key, row.question)

    def replace(self, conversation: str, old: str | None, key: str, question: str) -> bool:
        """Store a turn; return False if the last one is not *old* any more."""
        columns = self._table.c
        row = {"conversation": conversation, "key": key, "question": question}
        change: Any = sa.insert(self._table).values(row)
        if old is not None:
            same = (columns.conversation == conversation) & (columns.key == old)
            change = sa.update(self._table).where(same).values(row)
        try:
            with self._engine.begin() as connection:
                return bool(connection.execute(change).rowcount)
        except IntegrityError:
            return False


class ChatService:
    """The service behind the page: a durable client, its memory, and the last turns.

    Args:
        model: The model, or its name.
        database: Where conversations and turns are kept.
    """

    def __init__(self, model: ChatModel | str, database: str) -> None:
        self.database = sa.create_engine(database)
        self.last_turns = LastTurns(self.database)
        self.memory = MessageWindowChatMemory(SqlChatMemoryRepository(self.database))
        self.client = (
            ChatClient.builder(model)
            .default_system("You plan journeys. Be brief.")
            .default_tools(find_trains, book_train)
            .default_advisors(MessageChatMemoryAdvisor(self.memory))
            .tool_calling_manager(ToolCallingManager(interceptors=[ToolApproval()]))
            .build()
        )
        self.durable = durable(self.client, name="chat")

    async def close(self) -> None:
        """Close connections."""
        await self.client.aclose()
        self.database.dispose()

    async def read(self, conversation: ConversationId) -> dict[str, Any]:
        """Return the messages of a conversation, and whether its last turn runs or waits."""
        last = await self._last_turn(conversation)
        messages = await run_in_threadpool(self.memory.get, conversation)
        said = [
            {"role": message.role, "text": message.text}
            for message in messages
            if message.role in ("user", "assistant") and message.text
        ]
        # A turn is stored in the memory just before it ends.
        stored = last is None or any(message.id == last.key for message in messages)
        if last and not stored and last.state != "ended":
            said.append({"role": "user", "text": last.question})
        pending = await last.pending() if last else None
        return {
            "messages": said,
            "waiting": waiting(pending) if pending else {},
            "running": not stored and bool(last and last.state == "running"),
        }

    async def say(
        self, conversation: ConversationId, text: Annotated[str, Body(embed=True)]
    ) -> StreamingResponse:
        """Start a turn that answers *text*, and stream its answer."""
        last = await self._last_turn(conversation)
        if last and last.state != "ended":
            raise HTTPException(409, BUSY[last.state])
        if not text.strip():
            raise HTTPException(422, "Say something.")
        key, old = uuid4().hex, last.key if last else None
        if not await run_in_threadpool(self.last_turns.replace, conversation, old, key, text):
            raise HTTPException(409, BUSY["running"])
        question = UserMessage(text, id=key)
        request = self.durable.prompt([question]).conversation(conversation)
        return streaming(await self.durable.astart(request, key=key, streaming=True))

    async def decide(
        self, conversation: ConversationId, decisions: dict[str, bool]
    ) -> StreamingResponse:
        """Continue the turn that waits with *decisions*, and stream the rest of its answer."""
        last = await self._last_turn(conversation)
        if last is None or last.state != "waiting":
            raise HTTPException(404, "Nothing waits for a decision.")
        shown = len([event async for event in last.turn.aevents()]) - 1  # without the approval
        try:
            await last.turn.adecide(decisions)
        except UsageError as error:
            decided = (await last.turn.astatus()).state != "waiting"
            raise HTTPException(409 if decided else 422, str(error)) from error
        return streaming(last.turn, after=shown)

    async def follow(self, conversation: ConversationId) -> StreamingResponse:
        """Stream the answer of the last turn, which may run in another process."""
        last = await self._last_turn(conversation)
        if last is None:
            raise HTTPException(404, "Nothing was said.")
        return streaming(last.turn)

    async def _last_turn(self, conversation: str) -> "LastTurn | None":
        row = await run_in_threadpool(self.last_turns.get, conversation)
        if row is None:
            return None
        key, question = row
        turn = self.durable.turn(key=key)
        try:
            state = (await turn.astatus()).state
        except UsageError:  # the process ended before it had started the turn
            return LastTurn(key, question, turn, "ended")
        return LastTurn(key, question, turn, STATES.get(state, "ended"))


STATES = {"queued": "running", "running": "running", "waiting": "waiting"}
BUSY = {"running": "Wait for the answer first.", "waiting": "Decide about the tool calls first."}


@dataclass(frozen=True)
class LastTurn:
    """The last turn of a conversation, which is `running`, `waiting` or `ended`."""

    key: str
    question: str
    turn: DurableTurn
    state: str

    async def pending(self) -> PendingTurn | None:
        """Return what waits for decisions."""
        return (await self.turn.aresult()).pending_turn if self.state == "waiting" else None


def streaming(turn: DurableTurn, after: int = 0) -> StreamingResponse:
    """Return a response with the events of *turn* after some of them."""
    return StreamingResponse(told(turn, after), media_type="text/event-stream")


async def told(turn: DurableTurn, after: int) -> AsyncIterator[str]:
    """Yield server-sent events; the turn continues if the browser disconnects."""
    number = 0
    try:
        async for event in turn.aevents():
            number += 1
            if number <= after:
                continue
            match event:
                case TextDelta(text=text):
                    yield sent("text", text=text)
                case ToolCallFinished(tool_call=call, response=response):
                    yield sent("tool", name=call.name, given=call.arguments, result=response.data)
                case RoundRestarted():
                    yield sent("again")
                case ApprovalNeeded(turn=pending):
                    yield sent("approval", calls=waiting(pending))
                case _:
                    pass
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
    url = database or os.environ.get("DATABASE_URL", "sqlite:///durable_chat.db")
    service = ChatService(model or os.environ.get("CHATCLIENT_MODEL", "local"), url)
    # SQLite has one writer at a time, so the turns have a file of their own.
    turns = f"{url}-turns" if url.startswith("sqlite") else url

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        # Each reader of events has a thread.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(200))
        engine = await run_in_threadpool(launch, turns, takeover_seconds=takeover_seconds)
        yield
        await run_in_threadpool(engine.close, 5.0)
        await service.close()

    app = FastAPI(title="Chat", lifespan=lifespan)
    app.get("/")(lambda: FileResponse(PAGE))
    app.get("/conversations/{conversation}")(service.read)
    app.post("/conversations/{conversation}")(service.say)
    app.post("/conversations/{conversation}/decisions")(service.decide)
    app.get("/conversations/{conversation}/events")(service.follow)
    return app
