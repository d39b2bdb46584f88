"""The features that are run in every way; a new one is a line of `FEATURES`."""

import datetime as dt
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Media,
    Message,
    Next,
    Prompt,
    SystemRequest,
    ToolContext,
    UserMessage,
    handoff,
    tool,
)
from chatclient.advisors import (
    Budget,
    ContextWindowAdvisor,
    GuardrailResult,
    InputGuardrailAdvisor,
    MessageChatMemoryAdvisor,
    OutputGuardrailAdvisor,
    PromptChatMemoryAdvisor,
    QuestionAnswerAdvisor,
    RateLimitAdvisor,
    ReReadingAdvisor,
    ResponseCacheAdvisor,
    RetrievalAugmentationAdvisor,
    SafeGuardAdvisor,
    SessionLogAdvisor,
    SessionMemoryAdvisor,
    StructuredOutputValidationAdvisor,
    ToolGuardrailInterceptor,
    ToolSearchToolCallingAdvisor,
    UntrustedArguments,
    VectorStoreChatMemoryAdvisor,
    mask_personal_data,
)
from chatclient.bridges import (
    tools_from_langchain,
    tools_from_openai_agents,
    tools_from_pydantic_ai,
)
from chatclient.decisions import ApprovalRule, ApprovalRules, ChatDecisionModel, ToolCallReview
from chatclient.errors import OverloadedError
from chatclient.mcp import McpServer, McpToolCallbackProvider
from chatclient.memory import (
    ChatMemory,
    InMemorySessionRepository,
    MessageWindowChatMemory,
    SessionChatMemory,
    SessionService,
    SummarizingChatMemory,
    Window,
)
from chatclient.memory.shortening import READ_RESULT
from chatclient.memory.window import estimated_tokens
from chatclient.providers import FallbackChatModel, RoutingChatModel
from chatclient.retrieval import (
    Document,
    InMemoryVectorStore,
    KeywordDocumentRetriever,
    RewriteQueryTransformer,
)
from chatclient.testing import call
from chatclient.tools import (
    ExternalTool,
    NextTool,
    Skill,
    Skills,
    ToolApproval,
    ToolDefinition,
    ToolInvocation,
    ToolLimits,
    ToolMetadata,
    ToolRequest,
    ToolResult,
    augment,
)
from tests.support.bag_of_words import BagOfWords
from tests.ways.case import CONVERSATION, Case, Feature, hands_over, text_of

LAST = 100  # what ends the script of the model


def step(case: Case, name: str, *arguments: dict[str, Any], digest: bool = True) -> None:
    """Have the model call *name* in a round, once for each of *arguments*."""

    def calls(number: str, shown: str) -> Sequence[Any]:
        added = {"note": shown} if digest else {}
        return [
            call(name, {**each, **added}, id=f"{name}-{number}-{at}")
            for at, each in enumerate(arguments)
        ]

    case.steps.append(calls)


# --- Tools ---


def reading_tool(case: Case) -> None:
    @tool(effect="read")
    def look(note: str) -> str:
        """Look something up."""
        case.effects.append(f"look {note}")
        return f"seen {note}"

    case.tools.append(look)
    step(case, "look", {})


def async_tool(case: Case) -> None:
    @tool(effect="idempotent")
    async def store(note: str) -> str:
        """Store something."""
        case.effects.append(f"store {note}")
        return f"stored {note}"

    case.tools.append(store)
    step(case, "store", {})


class Place(BaseModel):
    city: str
    opened: dt.date


def typed_tool(case: Case) -> None:
    @tool(effect="read")
    def visit(places: list[Place], note: str) -> list[Place]:
        """Visit places."""
        case.effects.append(f"visit {[each.city for each in places]} {note}")
        return places

    case.tools.append(visit)
    step(case, "visit", {"places": [{"city": "Rome", "opened": "2020-01-02"}]})


def media_tool(case: Case) -> None:
    @tool(effect="read")
    def draw(note: str) -> list[Any]:
        """Draw a picture."""
        case.effects.append(f"draw {note}")
        return ["a picture", Media("image/png", b"\x89PNG" + note.encode())]

    case.tools.append(draw)
    step(case, "draw", {})


@dataclass
class Receipt:
    total: Decimal
    at: dt.datetime
    seal: object = None


def object_tool(case: Case) -> None:
    @tool(effect="read", result_converter=lambda receipt: str(receipt.total))
    def receipt(note: str) -> Receipt:
        """Return an object, part of which has no JSON form."""
        case.effects.append(f"receipt {note}")
        at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
        return Receipt(Decimal("1.50"), at, object())

    case.tools.append(receipt)
    step(case, "receipt", {})


def failing_tool(case: Case) -> None:
    @tool(effect="read")
    def fail(note: str) -> str:
        """Fail."""
        case.effects.append(f"fail {note}")
        raise LookupError(f"nothing for {note}")

    case.tools.append(fail)
    step(case, "fail", {})


def parallel_calls(case: Case) -> None:
    @tool(effect="read")
    def measure(room: str, note: str) -> str:
        """Measure a room."""
        case.effects.append(f"measure {room} {note}")
        return f"{room} {note}"

    case.tools.append(measure)
    step(case, "measure", {"room": "hall"}, {"room": "cellar"}, {"room": "attic"})


def return_direct(case: Case) -> None:
    @tool(effect="read", return_direct=True)
    def quote(note: str) -> str:
        """Return the answer."""
        case.effects.append(f"quote {note}")
        return f"quoted {note}"

    case.tools.append(quote)
    step(case, "quote", {})


def tool_context(case: Case) -> None:
    @tool(effect="read")
    def tenant(note: str, context: ToolContext) -> str:
        """Tell who asks."""
        case.effects.append(f"tenant {context['tenant']} {note}")
        return f"{context['tenant']} {context.conversation_id}"

    case.tools.append(tenant)
    case.builder_changes.append(lambda builder: builder.default_tool_context({"tenant": "acme"}))
    step(case, "tenant", {})


def progress(case: Case) -> None:
    @tool(effect="read")
    async def work(note: str, context: ToolContext) -> str:
        """Report progress."""
        await context.progress("half")
        await context.progress(object())
        case.effects.append(f"work {note}")
        return f"worked {note}"

    case.tools.append(work)
    step(case, "work", {})


def augmented_tool(case: Case) -> None:
    class Thought(BaseModel):
        thought: str

    @tool(effect="read")
    def think(note: str) -> str:
        """Think."""
        case.effects.append(f"think {note}")
        return note

    def heard(given: Any) -> None:
        case.effects.append(f"thought {given.extra.thought}")

    case.tools += augment(think, arguments=Thought, consumer=heard)
    step(case, "think", {"thought": "hm"})


def dynamic_provider(case: Case) -> None:
    @tool(effect="read")
    def today(note: str) -> str:
        """Tell the day."""
        case.effects.append(f"today {note}")
        return f"Monday {note}"

    class Provider:
        dynamic = True

        def tool_callbacks(self, request: ToolRequest) -> list[Any]:
            return [today]

    case.tools.append(Provider())
    step(case, "today", {})


def skills(case: Case) -> None:
    @tool(effect="read")
    def paint(note: str) -> str:
        """Paint."""
        case.effects.append(f"paint {note}")
        return f"painted {note}"

    case.tools.append(Skills(Skill("painting", "How to paint.", "Paint twice.", {}, (paint,))))
    step(case, "activate_skill", {"skill_name": "painting"}, digest=False)
    step(case, "paint", {})


def compensation(case: Case) -> None:
    def cancel(note: str) -> None:
        case.effects.append(f"cancel {note}")

    @tool(compensation=cancel, effect="idempotent")
    def book(note: str) -> str:
        """Book."""
        case.effects.append(f"book {note}")
        return f"booked {note}"

    case.tools.append(book)
    step(case, "book", {})


class _RefusedError(Exception):
    pass


def failing_turn(case: Case) -> None:
    """An advisor refuses each answer, after all tools have run."""

    async def refuse(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        raise OverloadedError("refused")

    case.advisors.append(refuse)


def background_tool(case: Case) -> None:
    """The tool ends when the model has gone on after it was started."""
    went_on = threading.Event()

    @tool(background=True, effect="idempotent")
    def dig(note: str) -> str:
        """Dig."""
        assert went_on.wait(60)
        case.effects.append(f"dig {note}")
        return f"dug {note}"

    def start(number: str, shown: str) -> Sequence[Any]:
        went_on.clear()
        return [call("dig", {"note": shown}, id=f"dig-{number}")]

    def go_on(_number: str, _shown: str) -> Sequence[Any]:
        went_on.set()
        return []

    case.tools.append(dig)
    case.steps += [start, go_on]


def langchain_tool(case: Case) -> None:
    from langchain_core.tools import tool as langchain

    @langchain
    def search_web(note: str) -> str:
        """Search the web."""
        case.effects.append(f"search_web {note}")
        return f"found {note}"

    case.tools += tools_from_langchain(search_web, metadata=ToolMetadata(effect="read"))
    step(case, "search_web", {})


def pydantic_ai_tool(case: Case) -> None:
    def roll(note: str) -> str:
        """Roll a die."""
        case.effects.append(f"roll {note}")
        return f"six {note}"

    case.tools += tools_from_pydantic_ai(roll, metadata=ToolMetadata(effect="read"))
    step(case, "roll", {})


def openai_agents_tool(case: Case) -> None:
    from agents import function_tool

    @function_tool
    def fetch(note: str) -> str:
        """Fetch a page."""
        case.effects.append(f"fetch {note}")
        return f"page {note}"

    case.tools += tools_from_openai_agents(fetch, metadata=ToolMetadata(effect="read"))
    step(case, "fetch", {})


def mcp_tool(case: Case) -> None:
    from mcp.client._memory import InMemoryTransport

    from chatclient.mcp import McpToolServer

    @tool(effect="read")
    def ship(note: str) -> str:
        """Ship a parcel."""
        case.effects.append(f"ship {note}")
        return f"shipped {note}"

    server = McpToolServer(ship).server
    provider = McpToolCallbackProvider(McpServer("shop", lambda: InMemoryTransport(server)))
    case.tools.append(provider)
    case.closed.append(provider.close)
    step(case, "ship", {})


# --- Decisions of people, and other clients ---


def approval(case: Case) -> None:
    @tool
    def pay(note: str) -> str:
        """Pay."""
        case.effects.append(f"pay {note}")
        return f"paid {note}"

    case.tools.append(pay)
    case.interceptors.append(ToolApproval(needed=lambda call: call.tool_call.name == "pay"))
    step(case, "pay", {})


def approval_rule(case: Case) -> None:
    """A rule allows one of two calls; about the other one a decision model decides."""

    @tool
    def sign(to: str, note: str) -> str:
        """Sign a letter."""
        case.effects.append(f"sign {to} {note}")
        return f"signed {note}"

    rules = ApprovalRules(owner=lambda invocation: "ada")
    rules.add("ada", ApprovalRule("sign", {"to": "bo"}, frozenset({"note"}), id="r1"))
    case.tools.append(sign)
    judge = ChatDecisionModel(case.scripted(lambda prompt: '{"q1": {"Yes": 0.99, "No": 0.01}}'))
    ask = (rules, ToolCallReview(judge))
    case.interceptors.append(
        ToolApproval(needed=lambda call: call.tool_call.name == "sign", ask=ask)
    )
    step(case, "sign", {"to": "bo"}, {"to": "eve"})


def external_tool(case: Case) -> None:
    parameters = {"type": "object", "properties": {"note": {"type": "string"}}}
    case.tools.append(ExternalTool(ToolDefinition("locate", "Tell where the user is.", parameters)))
    step(case, "locate", {})


def interceptor(case: Case) -> None:
    async def checked(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        result = await call_next(invocation)
        return replace(result, text=f"{result.text}, checked")

    case.interceptors.append(checked)
    reading_tool(case)


def checked_results(case: Case) -> None:
    """One result is rewritten, and another one refused."""

    @tool(effect="read")
    def fetch(page: str, note: str) -> str:
        """Fetch a page."""
        case.effects.append(f"fetch {page} {note}")
        return f"{page} by ann@firm.example {note}"

    def refuse_spam(result: ToolResult) -> GuardrailResult:
        spam = result.text.startswith("spam")
        return GuardrailResult.failure("spam") if spam else GuardrailResult.success()

    guard = ToolGuardrailInterceptor(mask_personal_data, refuse_spam, tools=["fetch"])
    case.tools.append(fetch)
    case.interceptors.append(guard)
    step(case, "fetch", {"page": "news"}, {"page": "spam"})


def untrusted_arguments(case: Case) -> None:
    """A value of a result is refused, and one that the user said as well is not."""

    @tool(effect="read")
    def mail(note: str) -> str:
        """Read a mail."""
        case.effects.append(f"mail {note}")
        return f"Question of Eve {note}"

    @tool(effect="idempotent")
    def reply(about: str, note: str) -> str:
        """Reply to a mail."""
        case.effects.append(f"reply {about} {note}")
        return f"replied {note}"

    case.tools += [mail, reply]
    case.interceptors.append(
        UntrustedArguments(checked=lambda call: call.tool_call.name == "reply")
    )
    step(case, "mail", {})
    step(case, "reply", {"about": "Eve"}, {"about": "Question"})


def handoff_to_other(case: Case) -> None:
    @tool(effect="read")
    def invoice(note: str) -> str:
        """Find an invoice."""
        case.effects.append(f"invoice {note}")
        return f"invoice {note}"

    answers = other_model(case, "invoice")
    other = ChatClient.builder(answers).name("billing").default_system("You do billing.")
    case.tools.append(handoff(other.default_tools(invoice).build(), description="Invoices."))
    step(case, "handoff_to_billing", {}, digest=False)


def other_model(case: Case, name: str) -> Any:
    """Return a model that calls the tool *name* once in each turn, and then answers."""
    from tests.ways.case import _progress, digest_of

    def answer(prompt: Prompt) -> Any:
        number, answered = _progress(prompt.messages)
        made = call(name, {"note": digest_of(prompt)}, id=f"{name}-{number}")
        return f"Other {digest_of(prompt)}." if made.id in answered else made

    return case.scripted(answer)


def agent(case: Case) -> None:
    @tool(effect="read")
    def archive(note: str) -> str:
        """Search the archive."""
        case.effects.append(f"archive {note}")
        return f"archived {note}"

    clerk = ChatClient.builder(other_model(case, "archive")).default_tools(archive).build()
    case.tools.append(clerk.as_tool("clerk", "Knows.", metadata=ToolMetadata(effect="read")))
    step(case, "clerk", {"request": "Question 7?"}, digest=False)


def agent_with_approval(case: Case) -> None:
    @tool
    def order(note: str) -> str:
        """Order."""
        case.effects.append(f"order {note}")
        return f"ordered {note}"

    from chatclient.tools import ToolCallingManager

    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(other_model(case, "order")).tool_calling_manager(manager)
    buyer = builder.default_tools(order).build()
    case.tools.append(buyer.as_tool("buyer", "Buys.", metadata=ToolMetadata(effect="idempotent")))
    step(case, "buyer", {"request": "Question 8?"}, digest=False)


# --- Memories ---


def with_memory(case: Case, memory: ChatMemory) -> None:
    case.stored.append(lambda: memory.get(CONVERSATION))


def window_memory(case: Case) -> None:
    memory = MessageWindowChatMemory(max_messages=200)
    case.advisors.append(MessageChatMemoryAdvisor(memory))
    with_memory(case, memory)


def prompt_memory(case: Case) -> None:
    memory = MessageWindowChatMemory(max_messages=200)
    case.advisors.append(PromptChatMemoryAdvisor(memory))
    with_memory(case, memory)


def memory_inside_loop(case: Case) -> None:
    memory = MessageWindowChatMemory(max_messages=200)
    case.advisors.append(MessageChatMemoryAdvisor(memory, order=0))
    with_memory(case, memory)


def session_memory(case: Case) -> None:
    memory = SessionChatMemory(SessionService(InMemorySessionRepository()))
    case.advisors.append(SessionMemoryAdvisor(memory))
    with_memory(case, memory)


def session_log(case: Case) -> None:
    memory = SessionChatMemory(SessionService(InMemorySessionRepository()))
    case.advisors += [SessionMemoryAdvisor(memory), SessionLogAdvisor(memory)]
    with_memory(case, memory)


def vector_memory(case: Case) -> None:
    store = InMemoryVectorStore(BagOfWords())
    case.advisors.append(VectorStoreChatMemoryAdvisor(store))
    case.stored.append(
        lambda: [
            UserMessage(text)
            for text in sorted(each.text for each in store.similarity_search("Question", top_k=99))
        ]
    )


def summarizing_memory(case: Case) -> None:
    notes = case.scripted(lambda prompt: "Notes.")
    memory = SummarizingChatMemory(notes, trigger=Window.messages(3), window=Window.messages(2))
    case.advisors.append(MessageChatMemoryAdvisor(memory))
    with_memory(case, memory)


# --- Advisors ---


def question_answer(case: Case) -> None:
    store = InMemoryVectorStore(BagOfWords())
    store.add([Document("Question 1 is easy", metadata={"on": "Monday"}), Document("Question 2")])
    case.advisors.append(QuestionAnswerAdvisor(store))


def retrieval(case: Case) -> None:
    documents = [Document("Question 1 is easy", metadata={"n": 1}), Document("Question 2 is hard")]
    asks = RewriteQueryTransformer(case.scripted(lambda prompt: "Question easy?"))
    retriever = KeywordDocumentRetriever(documents)
    case.advisors.append(RetrievalAugmentationAdvisor(retriever, query_transformers=[asks]))


def input_guardrail(case: Case) -> None:
    def polite(request: ChatClientRequest) -> GuardrailResult:
        return GuardrailResult("success", text=f"{text_of(request.prompt)} Please.")

    case.advisors.append(InputGuardrailAdvisor(polite))


def output_guardrail(case: Case) -> None:
    """The first answer to each question is sent back to the model."""

    def again(response: ChatResponse) -> GuardrailResult:
        if "twice" in response.text or not response.text.startswith("Answer"):
            return GuardrailResult("success")
        return GuardrailResult.reprompt("once", "Say it twice.")

    def twice(prompt: Prompt, digest: str) -> str | None:
        corrected = "twice" in prompt.messages[-1].text
        return f"Answer twice {digest}." if corrected else None

    case.before_final.append(twice)
    case.advisors.append(OutputGuardrailAdvisor(again))


def safe_guard(case: Case) -> None:
    case.advisors.append(SafeGuardAdvisor("forbidden"))


def blocked_by_safe_guard(case: Case) -> None:
    case.advisors.append(SafeGuardAdvisor("Question 2"))


class Film(BaseModel):
    title: str


def json_answer(case: Case) -> None:
    case.final = lambda digest: f'{{"title": "{digest}"}}'


def entity(case: Case) -> None:
    json_answer(case)
    case.entity = Film


def validated_json(case: Case) -> None:
    """The first answer to each question is no JSON, and the model corrects it."""
    json_answer(case)

    def broken(prompt: Prompt, digest: str) -> str | None:
        users = [each.text for each in prompt.messages if isinstance(each, UserMessage)]
        asked = users[-1].startswith("Question")
        return f"No JSON {digest}." if asked else None

    case.before_final.append(broken)
    case.advisors.append(StructuredOutputValidationAdvisor(Film))


def tool_search(disclosure: Literal["tools", "in_conversation"]) -> Callable[[Case], None]:
    return lambda case: _tool_search(case, disclosure)


def _tool_search(case: Case, disclosure: Literal["tools", "in_conversation"]) -> None:
    case.advisors.append(ToolSearchToolCallingAdvisor(threshold=0, disclosure=disclosure))

    @tool(effect="read")
    def translate(note: str) -> str:
        """Translate a text into another language."""
        case.effects.append(f"translate {note}")
        return f"traduit {note}"

    case.tools.append(translate)
    step(case, "toolSearchTool", {"query": "translate text"}, digest=False)
    step(case, "translate", {})


def fallback(case: Case) -> None:
    def down(prompt: Prompt) -> Any:
        raise OverloadedError("down")

    case.wrap_model.append(lambda model: FallbackChatModel(case.scripted(down), model))


def routing(case: Case) -> None:
    case.wrap_model.append(lambda model: RoutingChatModel(lambda prompt: model, model))


def budget(case: Case) -> None:
    case.advisors.append(Budget(calls=50))


def exceeded_budget(case: Case) -> None:
    case.advisors.append(Budget(calls=1))
    reading_tool(case)


def response_cache(case: Case) -> None:
    case.advisors.append(ResponseCacheAdvisor())


def rate_limit(case: Case) -> None:
    case.advisors.append(RateLimitAdvisor(requests=1000, period=60))


def context_window(case: Case) -> None:
    case.advisors.append(ContextWindowAdvisor(100_000))


def tokens_without_handoffs(message: Message) -> int:
    """Return the tokens of *message*, so that the way with a handoff has as much room."""
    return 0 if hands_over(message) else estimated_tokens(message)


def long_results(case: Case) -> None:
    """The results do not fit the window; one that is left out is read again."""

    @tool(effect="read")
    def study(note: str) -> str:
        """Study something."""
        case.effects.append(f"study {note}")
        return f"studied {note}; " * 500

    case.tools.append(study)
    window = ContextWindowAdvisor(12_000, estimator=tokens_without_handoffs)
    case.advisors.append(window)

    def studies(at: int) -> Callable[[str, str], Sequence[Any]]:
        return lambda number, _: [call("study", {"note": f"{at}."}, id=f"study-{number}-{at}")]

    case.steps += map(studies, range(1, 10))
    step(case, READ_RESULT, {"query": "studied 2."}, {"result": 2, "start": 100}, digest=False)
    step(case, "study", {})


def re_reading(case: Case) -> None:
    case.advisors.append(ReReadingAdvisor())


def limit(on_exceeded: Any) -> Callable[[Case], None]:
    def apply(case: Case) -> None:
        case.manager["limits"] = ToolLimits(max_total_calls=2, on_exceeded=on_exceeded)
        reading_tool(case)
        async_tool(case)
        typed_tool(case)

    return apply


def eager_reads(case: Case) -> None:
    case.manager["eager_reads"] = True
    parallel_calls(case)


def system_function(case: Case) -> None:
    def instructions(request: SystemRequest) -> str:
        return f"You answer in {request.conversation_id}."

    case.builder_changes.append(lambda builder: builder.default_system(instructions))


def template(case: Case) -> None:
    case.builder_changes.append(
        lambda builder: builder.default_system("You answer for {company}.", params={"company": "A"})
    )


def default_messages(case: Case) -> None:
    case.builder_changes.append(
        lambda builder: builder.default_messages(UserMessage("An example, with a picture."))
    )


def options(case: Case) -> None:
    case.builder_changes.append(lambda builder: builder.default_options(temperature=0.25))


def deadline(case: Case) -> None:
    case.builder_changes.append(lambda builder: builder.default_deadline(3600))


def rewriting_advisor(case: Case) -> None:
    async def rewrite(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        prompt = request.prompt.augment_user_message(f"{text_of(request.prompt)} In short.")
        response = await call_next(request.mutate(prompt=prompt))
        text = response.chat_response.text.replace("Answer", "Short answer")
        return response.mutate(chat_response=response.chat_response.with_text(text))

    case.advisors.append(rewrite)


def retrying_advisor(case: Case) -> None:
    async def retry(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        return await call_next(request)

    case.advisors.append(retry)


def answering_advisor(case: Case) -> None:
    async def answer(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        if "Question 1" in text_of(request.prompt):
            return ChatClientResponse(ChatResponse.of("Canned."))
        return await call_next(request)

    case.advisors.append(answer)


def asking_advisor(case: Case) -> None:
    """An advisor asks another client about each answer."""
    judge = ChatClient.create(case.scripted(lambda prompt: "Fine."))

    async def ask(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = (await call_next(request)).chat_response
        opinion = await request.runtime.invoke(_opinion, judge, response.text)
        judged = response.with_text(f"{response.text} {opinion}".strip())
        return ChatClientResponse(judged, request.context)

    case.advisors.append(ask)


async def _opinion(judge: ChatClient, text: str) -> str:
    return await judge.prompt(f"Is this good? {text}").acall().content()


FEATURES = (
    Feature("reading tool", reading_tool, "look"),
    Feature("async tool", async_tool, "store"),
    Feature("typed tool", typed_tool, "visit"),
    Feature("tool with media", media_tool),
    Feature("tool with object", object_tool),
    Feature("failing tool", failing_tool),
    Feature("parallel calls", parallel_calls, "measure"),
    Feature("return direct", return_direct, "end", order=LAST, ends=True),
    Feature("tool context", tool_context),
    Feature("progress", progress),
    Feature("augmented tool", augmented_tool),
    Feature("dynamic provider", dynamic_provider),
    Feature("skills", skills),
    Feature("compensation", compensation),
    Feature("background tool", background_tool, order=LAST - 1),
    # Reads that start early have run when the turn fails, which is what they are for.
    Feature("failing turn", failing_turn, "early", order=-LAST, ends=True),
    Feature("LangChain tool", langchain_tool),
    Feature("pydantic-ai tool", pydantic_ai_tool),
    Feature("OpenAI Agents tool", openai_agents_tool),
    Feature("MCP tool", mcp_tool),
    Feature("approval", approval),
    Feature("approval by rule", approval_rule),
    Feature("external tool", external_tool),
    Feature("interceptor", interceptor, "look"),
    Feature("checked results", checked_results),
    Feature("untrusted arguments", untrusted_arguments),
    Feature("handoff", handoff_to_other, "end", order=LAST, ends=True),
    Feature("agent", agent),
    Feature("agent with approval", agent_with_approval),
    Feature("window memory", window_memory, "memory"),
    Feature("prompt memory", prompt_memory, "memory"),
    Feature("memory inside the loop", memory_inside_loop, "memory"),
    Feature("session memory", session_memory, "memory"),
    Feature("session log", session_log, "memory"),
    Feature("vector memory", vector_memory),
    Feature("summarizing memory", summarizing_memory, "memory"),
    Feature("question answering", question_answer, "retrieval"),
    Feature("retrieval", retrieval, "retrieval"),
    Feature("input guardrail", input_guardrail),
    Feature("output guardrail", output_guardrail, "final"),
    Feature("safe guard", safe_guard, "safe guard"),
    Feature("blocked question", blocked_by_safe_guard, "safe guard", ends=True),
    Feature("entity", entity, "final", entity=True),
    Feature("validated answer", validated_json, "final"),
    Feature("tool search", tool_search("tools"), "tool search"),
    Feature("tool search by name", tool_search("in_conversation"), "tool search"),
    Feature("fallback", fallback, "model"),
    Feature("routing", routing, "model"),
    Feature("budget", budget, "budget"),
    Feature("exceeded budget", exceeded_budget, "budget look cache", ends=True),
    # What a stopped turn paid for is in the cache, so the next one spends less of its budget.
    Feature("response cache", response_cache, "cache"),
    Feature("rate limit", rate_limit),
    Feature("context window", context_window, "window"),
    Feature("long results", long_results, "window"),
    Feature("re-reading", re_reading),
    Feature("limit: partial", limit("partial"), "limit look store visit", ends=True),
    Feature("limit: raise", limit("raise"), "limit look store visit", ends=True),
    Feature("limit: tell model", limit("tell_model"), "limit look store visit"),
    Feature("limit: final answer", limit("final_answer"), "limit look store visit", ends=True),
    Feature("eager reads", eager_reads, "measure early"),
    Feature("system function", system_function, "system"),
    Feature("template", template, "system"),
    Feature("default messages", default_messages),
    Feature("options", options),
    Feature("deadline", deadline),
    Feature("rewriting advisor", rewriting_advisor),
    Feature("retrying advisor", retrying_advisor, "retry"),
    Feature("answering advisor", answering_advisor, ends=True),
    Feature("asking advisor", asking_advisor),
)
