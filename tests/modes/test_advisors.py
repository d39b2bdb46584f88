"""The advisor chain: order, context, repetition and streaming."""

import asyncio
import logging
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Next,
    UserMessage,
    tool,
)
from chatclient.advisors import (
    HIGHEST_PRECEDENCE,
    LOWEST_PRECEDENCE,
    MEMORY_ORDER,
    TOOL_CALLING_ORDER,
    SimpleLoggerAdvisor,
    ToolCallingAdvisor,
)
from chatclient.advisors.context_window import ContextWindowAdvisor
from chatclient.advisors.guardrails.safe_guard import SafeGuardAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor, PromptChatMemoryAdvisor
from chatclient.advisors.memory.session import SessionMemoryAdvisor
from chatclient.advisors.rate_limit import RateLimitAdvisor
from chatclient.advisors.response_cache import ResponseCacheAdvisor
from chatclient.advisors.retrieval.advisor import QuestionAnswerAdvisor
from chatclient.chat.events import Done, RoundEnded, TextDelta, ToolCallFinished
from chatclient.errors import ToolUsageError, UsageError
from chatclient.memory import InMemorySessionRepository, MessageWindowChatMemory, SessionService
from chatclient.observability.operations import AdvisorPass
from chatclient.retrieval import InMemoryVectorStore
from chatclient.testing import Ask, ScriptedModel, call
from tests.support.bag_of_words import BagOfWords


@tool
def ping() -> str:
    """Return "pong"."""
    return "pong"


@tool(confirm=True)
def pay() -> str:
    """Pay."""
    return "paid"


class Noting:
    """An advisor that records when it is entered and left."""

    def __init__(self, label: str, log: list[str], order: int = 0) -> None:
        self.name = label
        self.order = order
        self.log = log

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        self.log.append(f"{self.name} in")
        response = await call_next(request.mutate(context={"last before": self.name}))
        self.log.append(f"{self.name} out")
        return response.mutate(context={"last after": self.name})


@pytest.mark.feature(
    "request-advisors",
    "builder-default-advisors",
    "advisor-call-advisor-stream",
    "advisor-get-order",
    "advisor-lower-order-further-out",
    "advisor-highest-precedence-lowest",
    "advisor-equal-orders-run-reversed",
    "advisor-default-order-0-inside",
    "advisor-base-advisor-before-after",
    "advisor-chains-single-use",
    "pattern-observing-advisor-inside-loop",
    "lc4j-tool-request-transformer",
)
def test_advisors_are_sorted_by_order(ask: Ask) -> None:
    """A lower order is further out; equal orders keep the order of their addition."""
    log: list[str] = []
    advisors = [
        Noting("c", log),
        Noting("a", log, HIGHEST_PRECEDENCE),
        Noting("d", log),
        Noting("e", log, LOWEST_PRECEDENCE),
        Noting("b", log, -1),
    ]
    model = ScriptedModel(call("ping"), "done")
    ask(
        ChatClient.builder(model).default_advisors(advisors).default_tools(ping).build().prompt("x")
    )

    round_trip = [f"{n} in" for n in "bcde"] + [f"{n} out" for n in "edcb"]
    assert log == ["a in", *round_trip, *round_trip, "a out"]


def test_an_advisor_without_an_order_has_order_0(ask: Ask) -> None:
    """It keeps its place among advisors with order 0."""
    log: list[str] = []

    async def plain(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        log.append("plain in")
        return await call_next(request)

    a, b, c = (Noting(label, log, order) for label, order in (("a", 0), ("b", 0), ("c", 1)))
    ask(ChatClient.builder(ScriptedModel("x")).default_advisors(c, a, plain, b).build().prompt("x"))

    assert log[:4] == ["a in", "plain in", "b in", "c in"]


def test_what_each_advisor_returned_is_known(ask: Ask) -> None:
    """The trail and observers have the response of each advisor."""
    advisors = [Noting("outer", [], -5), Noting("inner", [], 5)]
    client = ChatClient.builder(ScriptedModel("ok")).default_advisors(*advisors).build()
    steps = ask(client.prompt("x")).answer.trail().steps

    returned = {
        step.operation.advisor: step.result.context["last after"]
        for step in steps
        if isinstance(step.operation, AdvisorPass)
    }
    assert (returned["outer"], returned["inner"]) == ("outer", "inner")


@pytest.mark.feature(
    "request-advisor-spec-param-params",
    "prompt-context-starts-advisor-params",
    "chain-chat-client-request",
    "chain-chat-client-response",
    "chain-mutate-context-merges",
    "advisor-call-advisor-stream",
    "advisor-base-advisor-before-after",
    "advisor-request-context-innermost-write",
    "advisor-response-context-outermost-write",
    "advisor-terminal-advisor-copies-context",
    "lc4j-entity-chat-request-transformer",
)
def test_context_flows_in_and_out(ask: Ask) -> None:
    """Inner values win in the request's context, and outer ones in the response's."""
    advisors = [Noting("outer", [], -5), Noting("inner", [], 5)]
    client = ChatClient.builder(ScriptedModel("ok")).default_advisors(*advisors).build()
    context = ask(client.prompt("x").advisor_params({"param": 1})).response.context

    assert context == {"param": 1, "last before": "inner", "last after": "outer"}


@pytest.mark.feature(
    "request-advisors",
    "request-advisor-spec-param-params",
    "merge-advisors-appended-params-merged",
    "advisor-request-advisors-beside-default",
)
def test_request_advisors_join_the_clients(ask: Ask) -> None:
    """Advisors of a request are added to the default ones; their params reach all."""
    log: list[str] = []
    client = ChatClient.builder(ScriptedModel("ok")).default_advisors(Noting("a", log)).build()
    result = ask(client.prompt("x").advisors(Noting("b", log), params={"k": "v"}))

    assert log == ["a in", "b in", "b out", "a out"]
    assert result.response.context["k"] == "v"


@pytest.mark.feature("advisor-chain-copy-next-call")
def test_an_advisor_may_call_the_model_again(ask: Ask) -> None:
    """A recursive advisor is a loop around `call_next`."""

    async def insist(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        while "42" not in response.chat_response.text:
            response = await call_next(request)
        return response

    model = ScriptedModel("41", "no", "42")
    client = ChatClient.builder(model).default_advisors(insist).build()

    assert ask(client.prompt("x")).response.chat_response.text == "42"
    assert len(model.prompts) == 3


@pytest.mark.feature("advisor-errors-stream-advisors-wrapped", "stream-errors-flux-error")
def test_an_advisor_that_makes_new_values_stays_in_the_turn(ask: Ask) -> None:
    """Its request and its response are part of the turn, with what tools did and what is stored."""
    memory = MessageWindowChatMemory()

    async def anew(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(
            ChatClientRequest(request.prompt, request.context, request.runtime)
        )
        return ChatClientResponse(response.chat_response)

    anew.order = MEMORY_ORDER - 1  # type: ignore[attr-defined]
    inside = partial(anew)
    model = ScriptedModel(call("ping"), "Fine.")
    builder = ChatClient.builder(model).default_advisors(anew, inside)
    client = builder.default_advisors(MessageChatMemoryAdvisor(memory)).build()
    result = ask(client.prompt("x").tools(ping).conversation("c"))

    assert [each.tool_call.name for each in result.executions] == ["ping"]
    assert [m.role for m in memory.get("c")] == ["user", "assistant", "tool", "assistant"]
    assert list(result.answer.messages()) == memory.get("c")


@pytest.mark.parametrize("reads", [True, False])
def test_an_advisor_cannot_wait(ask: Ask, reads: bool) -> None:
    """If a client that an advisor calls is suspended, an error is raised, and no more is sent."""
    paying = ChatClient.create(ScriptedModel(call("pay"))).mutate().default_tools(pay).build()
    model = ScriptedModel("never")

    async def delegate(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        answer = await request.runtime.invoke(lambda: paying.prompt("Pay!").call())
        if not reads:
            return await request.runtime.invoke(answer.chat_client_response)
        text = await request.runtime.invoke(answer.content)
        return await call_next(request.mutate(prompt=request.prompt.append(UserMessage(text))))

    with pytest.raises(ToolUsageError, match="waits for approval"):
        ask(ChatClient.create(model).prompt("x").advisors(delegate))
    assert model.prompts == []


def test_an_exception_keeps_its_type(ask: Ask) -> None:
    """What an advisor or the model raises reaches the caller as it is."""
    client = ChatClient.builder(ScriptedModel(LookupError("gone"))).build()

    with pytest.raises(LookupError, match="gone"):
        ask(client.prompt("x"))


@pytest.mark.feature("advisor-forgotten-response")
def test_an_advisor_that_returns_nothing_is_named(ask: Ask) -> None:
    """A missing `return` raises an error with the advisor's name."""

    async def forgetful(request: ChatClientRequest, call_next: Next) -> Any:
        await call_next(request)

    client = ChatClient.builder(ScriptedModel("ok")).default_advisors(forgetful).build()

    with pytest.raises(TypeError, match="'forgetful' returned None"):
        ask(client.prompt("x"))


@pytest.mark.feature("refused-null-foreign-elements-advisors")
@pytest.mark.parametrize(("wrong", "mend"), [(42, ""), (Noting, r"make one: Noting\(")])
def test_what_cannot_be_called_is_no_advisor(wrong: Any, mend: str) -> None:
    """An advisor has to be callable; a class instead of an instance is refused."""
    with pytest.raises(TypeError, match=f"not an advisor; .*{mend}"):
        ChatClient.builder(ScriptedModel("ok")).default_advisors(wrong)


@pytest.mark.parametrize(
    "make",
    [
        SimpleLoggerAdvisor,
        ResponseCacheAdvisor,
        partial(RateLimitAdvisor, requests=1),
        partial(SafeGuardAdvisor, ["secret"]),
        partial(ContextWindowAdvisor, 100),
        partial(QuestionAnswerAdvisor, InMemoryVectorStore(BagOfWords())),
        partial(MessageChatMemoryAdvisor, MessageWindowChatMemory()),
        partial(PromptChatMemoryAdvisor, MessageWindowChatMemory()),
        partial(SessionMemoryAdvisor, SessionService(InMemorySessionRepository())),
    ],
)
def test_an_advisor_has_the_order_that_it_is_given(make: Any) -> None:
    """Advisors of the library accept an order, too."""
    client = ChatClient.builder(ScriptedModel("x")).default_advisors(make(order=7)).build()

    assert "(order 7)" in str(client)


def test_an_order_is_a_number() -> None:
    """An `order` that is a method is refused immediately, with the advisor's name."""

    class Getter:
        def order(self) -> int:
            return 5

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            return await call_next(request)

    with pytest.raises(TypeError, match="order of advisor 'Getter' must be an int or"):
        ChatClient.builder(ScriptedModel("ok")).default_advisors(Getter())


def test_a_plain_function_is_no_advisor(ask: Ask) -> None:
    """The error asks for a coroutine function."""

    def plain(request: ChatClientRequest, call_next: Next) -> Any:
        return None

    client = ChatClient.builder(ScriptedModel("ok")).default_advisors(plain).build()
    with pytest.raises(TypeError, match="'plain' is not a coroutine function; write it"):
        ask(client.prompt("x"))


def test_a_function_that_returns_an_awaitable_is_an_advisor() -> None:
    """A function may return a future."""

    async def main() -> str:
        def plain(request: ChatClientRequest, call_next: Next) -> Any:
            return asyncio.ensure_future(call_next(request))

        client = ChatClient.builder(ScriptedModel("ok")).default_advisors(plain).build()
        return await client.prompt("x").acall().content()

    assert asyncio.run(main()) == "ok"


@pytest.mark.feature("advisor-changing-streamed", "advisor-each-level-aggregates-chunks")
def test_an_advisor_may_rewrite_what_is_streamed(ask: Ask) -> None:
    """With a mapped emitter, the streamed text equals that of the response."""

    async def loud(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        async def emit(event: Any) -> None:
            changed = TextDelta(event.text.upper()) if isinstance(event, TextDelta) else event
            await request.runtime.emit(changed)

        response = await call_next(request.mutate(runtime=request.runtime.with_emitter(emit)))
        text = response.chat_response.text.upper()
        return response.mutate(chat_response=ChatResponse.of(text))

    result = ask(
        ChatClient.builder(ScriptedModel("psst")).default_advisors(loud).build().prompt("x")
    )

    assert result.text == result.response.chat_response.text == "PSST"


@pytest.mark.feature("advisor-holding-stream-back")
def test_an_advisor_can_hold_back_the_stream(ask: Ask) -> None:
    """Events that it drops are not streamed; its own answer is."""

    async def censor(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request.mutate(runtime=request.runtime.silent()))
        return ChatClientResponse(ChatResponse.of("[removed]"))

    result = ask(
        ChatClient.builder(ScriptedModel("secret")).default_advisors(censor).build().prompt("x")
    )

    assert result.text == "[removed]"


@pytest.mark.feature("refused-two-advisors-run-loop", "loop-more-one-error")
def test_only_one_advisor_runs_the_tool_loop() -> None:
    """Two tool loops in one chain are refused by name."""
    builder = ChatClient.builder(ScriptedModel("ok"))

    with pytest.raises(UsageError, match="ToolCallingAdvisor"):
        builder.default_advisors(ToolCallingAdvisor(), ToolCallingAdvisor()).build()


@pytest.mark.feature(
    "advisor-tool-advisor-marker", "loop-another-tool-advisor-takes", "pattern-replacing-loop"
)
def test_a_custom_tool_loop_replaces_the_default(ask: Ask) -> None:
    """An advisor marked as handling tool calls prevents the automatic one.

    It is left out if tool calling is switched off, because it has no such option.
    """

    class MyLoop:
        handles_tool_calls = True
        runs = 0

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            self.runs += 1
            return await call_next(request)

    model, loop = ScriptedModel(call("ping"), call("ping")), MyLoop()
    client = ChatClient.builder(model).default_advisors(loop).default_tools(ping).build()

    for request in (client.prompt("x"), client.prompt("x").tool_calling(False)):
        assert ask(request).response.chat_response.has_tool_calls()
    assert loop.runs == 1


@pytest.mark.feature(
    "advisor-simple-logger-advisor",
    "pattern-observing-advisor-inside-loop",
    "advisors-simple-logger-advisor",
)
def test_the_logger_logs_every_round(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Requests and responses are logged at debug level, and nothing above it."""
    caplog.set_level(logging.DEBUG, "chatclient.advisors.simple_logger")
    model = ScriptedModel(call("ping"), "done")
    builder = ChatClient.builder(model).default_advisors(SimpleLoggerAdvisor())
    ask(builder.default_tools(ping).build().prompt("What?"))

    lines = [r.getMessage() for r in caplog.records if "simple_logger" in r.name]
    assert len(lines) == 4
    assert lines[0] == "request text='What?'"
    assert "done" in lines[-1]


@pytest.mark.feature("advisor-request-string-response", "observation-log-prompt-completion")
def test_the_logger_logs_the_given_texts(caplog: pytest.LogCaptureFixture) -> None:
    """Functions of the application make the logged texts."""
    caplog.set_level(logging.DEBUG)
    advisor = SimpleLoggerAdvisor(
        request_to_text=lambda request: "the request",
        response_to_text=lambda response: "the response",
    )
    client = ChatClient.builder(ScriptedModel("secret")).default_advisors(advisor).build()
    client.prompt("also secret").call().content()

    assert "secret" not in caplog.text
    assert "the response" in caplog.text


@pytest.mark.parametrize(("level", "made"), [("info", 2), ("debug", 0)])
def test_the_logger_makes_no_text_below_its_level(
    ask: Ask, caplog: pytest.LogCaptureFixture, level: Any, made: int
) -> None:
    """The functions are called only if the level is enabled."""
    caplog.set_level(logging.INFO)
    texts: list[Any] = []

    def text_of(it: object) -> str:
        texts.append(it)
        return "a text"

    advisor = SimpleLoggerAdvisor(level=level, request_to_text=text_of, response_to_text=text_of)
    ask(ChatClient.builder(ScriptedModel("ok")).default_advisors(advisor).build().prompt("?"))

    assert len(texts) == caplog.text.count("a text") == made


class Counting:
    """An advisor that counts the rounds in the context, and records what it reads."""

    order = 5

    def __init__(self) -> None:
        self.found: list[Any] = []

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        self.found.append(request.context["rounds"])
        response = await call_next(request)
        return response.mutate(context={"rounds": request.context["rounds"] + 1})


@pytest.mark.feature("advisor-context-advisors-inside-tool")
def test_context_of_a_round_reaches_the_next_round(ask: Ask) -> None:
    """The response context of a round is merged into the request context of the next one."""
    counting = Counting()
    model = ScriptedModel(call("ping"), call("ping"), "done")
    client = ChatClient.builder(model).default_advisors(counting).default_tools(ping).build()
    request = client.prompt("x").advisor_params({"rounds": 0, "other": "kept"})
    context = ask(request).response.context

    assert counting.found == [0, 1, 2]
    assert (context["rounds"], context["other"]) == (3, "kept")


@pytest.mark.feature("advisor-context-advisors-inside-tool")
def test_before_call_can_change_the_context(ask: Ask) -> None:
    """It receives the context of earlier rounds, and its changes take precedence."""
    counting = Counting()
    before: list[Any] = []

    class Tenfold(ToolCallingAdvisor):
        async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
            before.append(request.context["rounds"])
            return request.mutate(context={"rounds": request.context["rounds"] * 10})

    model = ScriptedModel(call("ping"), "done")
    client = ChatClient.builder(model).default_advisors(Tenfold(), counting).build()
    ask(client.prompt("x").tools(ping).advisor_params({"rounds": 1}))

    assert before == [1, 11]
    assert counting.found == [10, 110]


@pytest.mark.feature("advisor-context-advisors-inside-tool")
def test_an_empty_context_keeps_earlier_values(ask: Ask) -> None:
    """A round whose response has an empty context removes nothing."""
    counting = Counting()

    async def in_the_models_place(request: ChatClientRequest, call_next: Next) -> Any:
        if request.context["rounds"]:
            return ChatClientResponse(ChatResponse.of("enough"))
        return await call_next(request)

    builder = ChatClient.builder(ScriptedModel(call("ping"))).default_tools(ping)
    client = builder.default_advisors(in_the_models_place, counting).build()
    result = ask(client.prompt("x").advisor_params({"rounds": 0}))

    assert result.text == "enough"
    assert result.response.context["rounds"] == 1


@pytest.mark.feature("response-text")
def test_an_advisor_may_reword_every_round_of_a_tool_loop(ask: Ask) -> None:
    """`with_text` keeps the tool calls, the usage and the finish reason."""

    async def shout(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        return response.mutate(chat_response=response.chat_response.with_text(str.upper))

    model = ScriptedModel(["let me see", call("ping")], "done")
    client = ChatClient.builder(model).default_advisors(shout).default_tools(ping).build()
    asked = ask(client.prompt("x"))

    answer = asked.response.chat_response
    assert len(asked.executions) == 1
    assert (answer.text, answer.finish_reason) == ("DONE", "stop")
    assert answer.usage.total_tokens == 30


async def one_parameter(request: ChatClientRequest) -> ChatClientResponse:
    raise AssertionError


async def three_parameters(request: Any, call_next: Next, more: Any) -> ChatClientResponse:
    raise AssertionError


class OneParameter:
    async def __call__(self, request: ChatClientRequest) -> ChatClientResponse:
        raise AssertionError

    async def advise(self, request: ChatClientRequest) -> ChatClientResponse:
        raise AssertionError


@pytest.mark.parametrize(
    "advisor", [one_parameter, three_parameters, OneParameter(), OneParameter().advise]
)
def test_an_invalid_advisor_is_refused_when_it_is_added(advisor: Any) -> None:
    """The error is not raised at the first request only."""
    with pytest.raises(TypeError, match=r"those are called with \(request, call_next\)"):
        ChatClient.builder(ScriptedModel()).default_advisors(advisor)


def test_an_advisor_may_take_more_than_it_is_given(ask: Ask) -> None:
    """Optional and variable arguments, methods and partials are accepted."""

    async def defaults(request: Any, call_next: Next, *, label: str = "") -> ChatClientResponse:
        return await call_next(request)

    async def optional(request: Any, call_next: Next, label: str = "") -> ChatClientResponse:
        return await call_next(request)

    async def variable(*arguments: Any) -> ChatClientResponse:
        return await defaults(*arguments)

    class Holder:
        async def advise(self, request: Any, call_next: Next) -> ChatClientResponse:
            return await call_next(request)

    advisors: list[Any] = [
        defaults,
        optional,
        variable,
        Holder().advise,
        partial(defaults, label="x"),
    ]
    client = ChatClient.builder(ScriptedModel("ok")).default_advisors(advisors).build()

    assert ask(client.prompt("x")).text == "ok"
    assert [line.split()[1] for line in str(client).splitlines()[2:7]] == [
        *("defaults", "optional", "variable", "advise"),
        "defaults",  # what the partial calls
    ]


@pytest.mark.parametrize("order", [-1, LOWEST_PRECEDENCE])
def test_the_chain_continues_with_a_request_only(ask: Ask, order: int) -> None:
    """Any other argument of `call_next` is refused with the advisor's name."""

    class Wrong:
        async def __call__(self, request: Any, call_next: Any) -> ChatClientResponse:
            response: ChatClientResponse = await call_next(request.prompt)
            return response

    wrong = Wrong()
    wrong.order = order  # type: ignore[attr-defined]
    another = Noting("another", [])
    client = ChatClient.builder(ScriptedModel("never")).default_advisors(wrong, another).build()

    with pytest.raises(TypeError, match=r"called call_next with Prompt.*request\.mutate"):
        ask(client.prompt("x"))


def test_a_request_holds_a_prompt(ask: Ask) -> None:
    """A text as the prompt is refused in the constructor."""

    async def wrong(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        prompt: Any = "hello"
        return await call_next(request.mutate(prompt=prompt))

    client = ChatClient.builder(ScriptedModel("never")).default_advisors(wrong).build()

    with pytest.raises(TypeError, match="augment_user_message"):
        ask(client.prompt("x"))


class Configured(BaseModel):
    """An advisor that can be iterated, as all models of pydantic can."""

    order: int = 5

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return await call_next(request)


def test_a_callable_iterable_is_one_advisor(ask: Ask) -> None:
    """It is not treated as a collection of advisors."""
    client = ChatClient.builder(ScriptedModel("a")).default_advisors(Configured()).build()

    assert ask(client.prompt("x")).text == "a"
    assert "Configured" in client.diagram()


async def limited(request: ChatClientRequest, call_next: Next) -> Any:
    """Call the rest of the chain with a timeout."""
    return await request.runtime.invoke(call_next, request, timeout=30)


def test_the_rest_of_the_chain_may_be_given_a_time(ask: Ask) -> None:
    """Its stream passes all emitters, also where a blocking stream needs a loop for it."""
    model = ScriptedModel(["Hm. ", call("ping")], "done")
    loop = ToolCallingAdvisor(stream_tool_call_responses=False)
    limited.order = TOOL_CALLING_ORDER - 1  # type: ignore[attr-defined]
    builder = ChatClient.builder(model).default_tools(ping).default_advisors(limited, loop)
    result = ask(builder.build().prompt("x"))

    assert result.text == "done"
    if ask.streaming:
        kinds = [type(event) for event in result.events]
        assert [kinds.count(kind) for kind in (ToolCallFinished, RoundEnded, Done)] == [1, 2, 1]


def test_an_async_generator_is_refused(ask: Ask) -> None:
    """The error does not suggest `async def`, which it has."""

    async def yielding(request: ChatClientRequest, call_next: Next) -> Any:
        yield await call_next(request)

    client = ChatClient.builder(ScriptedModel("a")).default_advisors(yielding).build()
    with pytest.raises(TypeError, match="'yielding' is a generator"):
        ask(client.prompt("x"))


def test_a_held_back_answer_can_be_changed(ask: Ask) -> None:
    """With streaming disabled inside, only the advisor's own text is streamed, in one piece."""

    class Redact:
        order = TOOL_CALLING_ORDER - 10

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            response = await call_next(request.mutate(runtime=request.runtime.silent()))
            answer = response.chat_response.with_text(lambda text: text.replace("1234", "****"))
            return response.mutate(chat_response=answer)

    model = ScriptedModel(["one 1234", call("ping")], "two 1234")
    client = ChatClient.builder(model).default_advisors(Redact()).default_tools(ping).build()

    asked = ask(client.prompt("x"))

    assert asked.text == "two ****"
    if ask.streaming:
        assert [e for e in asked.events if isinstance(e, TextDelta)] == [TextDelta("two ****")]
