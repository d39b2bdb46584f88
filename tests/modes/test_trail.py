"""The trail of a turn: its rounds, as data and as text."""

import asyncio
import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

import pytest

from chatclient import ChatClient, ChatClientRequest, ChatClientResponse, Next, UserMessage, tool
from chatclient.advisors import TOOL_CALLING_ORDER
from chatclient.advisors.budget import Budget
from chatclient.chain.model_call import ask_model
from chatclient.chat.events import RoundEnded, ToolCallStarted
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import Usage
from chatclient.errors import OverloadedError, ProviderError, ToolCallRefusedError, UsageError
from chatclient.observability.operations import ClientCall, MemoryAccess, ModelCall
from chatclient.observability.trail import Change, Trail
from chatclient.providers.http.retry import RetryPolicy
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.runtime.observation import Step
from chatclient.runtime.runtime import BLOCKING, ON_LOOP
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import FunctionToolCallback, ToolApproval, ToolCallingManager
from tests.support.servers import ChatServer, Reply, completion


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


@tool
def get_time() -> str:
    """Get the time."""
    msg = "no clock"
    raise RuntimeError(msg)


@tool
def pay() -> None:
    """Pay."""


class Enriching:
    """An advisor that adds a message, hides a tool and sets an option in every round."""

    order = 10

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        prompt = request.prompt
        kept = [c for c in prompt.options.tool_callbacks or () if c.definition.name != "get_time"]
        options = prompt.options.mutate(tool_callbacks=kept, temperature=0.3)
        messages = (*prompt.messages, UserMessage("Be kind."))
        changed = prompt.with_options(options).with_messages(messages)
        return await call_next(request.mutate(prompt=changed))


async def idle(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    return await call_next(request)


def trail_of(answered: ChatClientResponse) -> Trail:
    assert answered.trail is not None
    return answered.trail


@pytest.mark.feature("observation-why-turn-went-did")
def test_rounds_have_their_calls(ask: Ask) -> None:
    """Each round has the prompt, the tools, the response, the executions and the usage."""
    model = ScriptedModel(
        [call("get_weather", '{"city": "Rome"}'), call("get_time")], "Fine.", options=ChatOptions()
    )
    client = ChatClient.builder(model).default_tools(get_weather, get_time).build()
    trail = trail_of(ask(client.prompt("Weather?")).response)

    first, second = trail.rounds
    assert (first.number, first.model, first.messages) == (1, "ScriptedModel", 1)
    assert first.offered == ("get_weather", "get_time")
    assert (first.finish_reason, first.text, first.error) == ("tool_call", "", None)
    assert [step.operation.name for step in first.tools] == [
        "execute_tool get_weather",
        "execute_tool get_time",
    ]
    assert [type(step.error) for step in first.tools] == [type(None), RuntimeError]
    assert (second.messages, second.finish_reason, second.text) == (3, "stop", "Fine.")
    assert not (second.discovered)
    assert not (second.changes)
    assert not (second.tools)
    assert (trail.usage.input_tokens, trail.usage.output_tokens) == (20, 10)
    assert (trail.seconds or 0) >= sum(round_.seconds or 0 for round_ in trail.rounds)


@pytest.mark.feature("observation-why-turn-went-did")
def test_changes_name_the_advisor(ask: Ask) -> None:
    """Each change has the advisor's name, and advisors without changes are left out."""
    model = ScriptedModel(call("get_weather", '{"city": "Rome"}'), "Fine.")
    client = (
        ChatClient.builder(model)
        .default_tools(get_weather, get_time)
        .default_advisors(idle, Enriching())
        .build()
    )
    trail = trail_of(ask(client.prompt("Weather?")).response)

    added = (UserMessage("Be kind."),)
    hidden = ("get_time",)
    change = Change("Enriching", added, tools_removed=hidden, options=(("temperature", 0.3),))
    assert [round_.changes for round_ in trail.rounds] == [(change,), (change,)]
    assert trail.rounds[0].offered == ("get_weather",)


def test_tools_that_appear_are_discovered(ask: Ask) -> None:
    """A tool that is first offered in a later round is a discovery."""

    class Discovering:
        order = 10

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            if len(request.prompt.messages) == 1:
                return await call_next(request)
            tools = (get_weather_callback, get_time_callback)
            options = request.prompt.options.mutate(tool_callbacks=tools)
            return await call_next(request.mutate(prompt=request.prompt.with_options(options)))

    from chatclient.tools import tool_callbacks

    get_weather_callback, get_time_callback = tool_callbacks([get_weather, get_time])
    model = ScriptedModel(call("get_weather", '{"city": "Rome"}'), "Fine.")
    client = (
        ChatClient.builder(model).default_tools(get_weather).default_advisors(Discovering()).build()
    )
    trail = trail_of(ask(client.prompt("Weather?")).response)

    assert trail.rounds[1].discovered == ("get_time",)
    assert trail.rounds[1].changes == (Change("Discovering", tools_added=("get_time",)),)
    assert "discovered get_time" in str(trail)


def test_running_calls(ask: Ask) -> None:
    """Model and tool calls that have not ended are shown as running."""
    trails: list[Trail] = []
    texts: list[str] = []

    async def capture(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        trails.append(Trail(request.runtime.steps))
        with request.runtime.observe(ModelCall(ScriptedModel(), request.prompt, streaming=False)):
            texts.append(str(trails[0]))
        return await call_next(request)

    @tool
    def look() -> None:
        """Look at the trail."""
        texts.append(str(trails[0]))

    model = ScriptedModel(call("look"), "Fine.")
    ask(ChatClient.builder(model).default_tools(look).default_advisors(capture).build().prompt("?"))
    assert "    running" in texts[0].splitlines()
    assert "    look({}) running" in texts[1].splitlines()
    assert "failed" not in texts[0]


def test_text(ask: Ask) -> None:
    """There is one line for each operation; long texts are truncated."""
    model = ScriptedModel(
        [call("get_weather", '{"city": "Rome"}'), call("get_time")], "A long answer. " * 20
    )
    client = (
        ChatClient.builder(model)
        .default_tools(get_weather, get_time)
        .default_advisors(Enriching())
        .build()
    )
    text = str(trail_of(ask(client.prompt("Weather?")).response))

    lines = [line.split(" (")[0] for line in text.splitlines()]
    assert lines[1:6] == [
        "round 1: ScriptedModel, 2 messages, tools: get_weather",
        "    Enriching added 1 message; hid get_time; set temperature=0.3",
        "    tool_call",
        '    get_weather({"city": "Rome"}) -> sunny in Rome',
        lines[5],
    ]
    assert lines[5].startswith("    get_time({}) failed: UnknownToolError")
    assert lines[0] == "turn"
    assert text.splitlines()[0].endswith("ToolCallingAdvisor → Enriching")
    assert max(map(len, lines)) < 160
    assert "A long answer. A long answer." in text
    assert text.splitlines()[-1] == "in all: 20 + 10 tokens"


@pytest.mark.parametrize(
    ("count", "told"), [(10, "tool8, tool9"), (11, "tool9 and 1 more"), (100, "tool9 and 90 more")]
)
def test_many_tools_that_were_hidden_are_counted(ask: Ask, count: int, told: str) -> None:
    """The text names some, as with a tool search over all of them; the data names all."""

    class Without:
        order = TOOL_CALLING_ORDER - 10

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            options = request.prompt.options.mutate(tool_callbacks=())
            return await call_next(request.mutate(prompt=request.prompt.with_options(options)))

    tools = [FunctionToolCallback(get_time, name=f"tool{number}") for number in range(count)]
    client = ChatClient.builder(ScriptedModel("Fine.")).default_advisors(Without()).build()
    trail = trail_of(ask(client.prompt("Time?").tools(tools)).response)

    hidden = [line for line in str(trail).splitlines() if "hid tool0, tool1, " in line]
    assert len(hidden) == 1
    assert hidden[0].endswith(told)
    assert len(trail.rounds[0].changes[0].tools_removed) == count


def test_a_call_that_waits_has_not_failed(ask: Ask) -> None:
    """It is shown as waiting for approval."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(ScriptedModel(call("pay"))).default_tools(pay)
    trail = trail_of(ask(builder.tool_calling_manager(manager).build().prompt("x")).response)

    (step,) = trail.rounds[0].tools
    assert (step.error, step.result) == (None, None)
    assert "    pay({}) waits for approval" in str(trail).splitlines()


def test_long_options_are_cut_short_in_the_text(ask: Ask) -> None:
    """A long option, such as a schema, is truncated."""
    schema = {"type": "object", "properties": {f"field_{n}": {} for n in range(100)}}

    async def demand(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        options = request.prompt.options.mutate(output_schema=schema)
        return await call_next(request.mutate(prompt=request.prompt.with_options(options)))

    client = ChatClient.builder(ScriptedModel("{}")).default_advisors(demand).build()
    trail = trail_of(ask(client.prompt("x")).response)

    (line,) = (line for line in str(trail).splitlines() if "output_schema" in line)
    assert len(line) < 120
    assert trail.rounds[0].changes[0].options == (("output_schema", schema),)


def test_retries_are_in_the_trail(ask: Ask, chat_server: Callable[..., ChatServer]) -> None:
    """Each retry has its reason."""
    server = chat_server(Reply(b"{}", 500), Reply(b"{}", 429), completion("Fine."))
    with OpenAIChatModel(
        "m", api_key="k", base_url=server.url, max_retries=RetryPolicy(2, first_wait=0.001)
    ) as model:
        trail = trail_of(ask(ChatClient.create(model).prompt("Hi")).response)

    assert trail.rounds[0].retries == ("OverloadedError", "RateLimitedError")
    assert "retried after" in str(trail)


@pytest.mark.feature("observation-why-turn-went-did")
def test_a_failure_carries_the_trail(ask: Ask) -> None:
    """The error has the trail, and its pickle does not."""
    model = ScriptedModel(
        call("get_weather", '{"city": "Rome"}'), ProviderError("overloaded", provider="p")
    )
    client = ChatClient.builder(model).default_tools(get_weather).build()
    with pytest.raises(ProviderError) as caught:
        ask(client.prompt("Weather?"))

    trail = caught.value.trail
    assert [round_.error for round_ in trail.rounds] == [None, caught.value]
    assert "failed: ProviderError('overloaded')" in str(trail)
    assert pickle.loads(pickle.dumps(caught.value)).trail is None
    assert copy.copy(caught.value).trail is None


def test_messages_of_a_failed_preparation(ask: Ask) -> None:
    """If the system text function fails, the trail has the user's message."""

    def write() -> str:
        msg = "overloaded"
        raise OverloadedError(msg)

    builder = ChatClient.builder(ScriptedModel("unasked")).default_messages(UserMessage("Hello"))
    request = builder.default_system(write).build().prompt("Weather?")
    with pytest.raises(OverloadedError) as caught:
        ask(request)

    assert caught.value.trail.messages == (UserMessage("Weather?"),)
    assert caught.value.trail.rounds == ()


def test_a_response_is_pickled_without_the_trail(ask: Ask) -> None:
    """The pickle has the executions, but not the tools, which the trail references."""
    model = ScriptedModel(call("get_weather", '{"city": "Rome"}'), "sunny")
    client = ChatClient.builder(model).default_tools(get_weather).build()
    response = ask(client.prompt("Weather?")).response

    copied = pickle.loads(pickle.dumps(response))
    assert copied == response
    assert (response.trail is None, copied.trail) == (False, None)


def test_every_accessor_returns_it() -> None:
    """In blocking and streaming requests; an answer of an advisor has no rounds."""

    async def answering(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        from chatclient import ChatResponse

        return ChatClientResponse(ChatResponse.of("No."), request.context)

    client = ChatClient.builder(ScriptedModel("Hi.")).build()
    stream = client.prompt("Hi").stream()
    assert "".join(stream) == "Hi."
    assert len(stream.trail().rounds) == 1

    client = ChatClient.builder(ScriptedModel()).default_advisors(answering).build()
    answer = client.prompt("Hi").call()
    answer.content()
    assert answer.trail().rounds == ()
    assert repr(answer.trail()) == f"Trail(0 rounds, {len(answer.trail().steps)} steps)"


async def test_the_asynchronous_accessor_returns_it() -> None:
    """It is awaited like the other accessors."""
    answer = ChatClient.create(ScriptedModel("Hi.")).prompt("Hi").acall()

    assert len((await answer.trail()).rounds) == 1
    assert await answer.usage() == Usage(10, 5)


def test_the_usage_of_a_turn(ask: Ask) -> None:
    """It is that of all rounds, with the share that came from the cache."""
    usage = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=9)
    model = ScriptedModel(call("get_weather", '{"city": "Rome"}'), "Sunny.", usage=usage)
    result = ask(ChatClient.builder(model).default_tools(get_weather).build().prompt("x"))

    assert result.answer.usage() == usage + usage
    assert result.answer.usage().cached_share == 0.9


def test_a_trail_begins_empty() -> None:
    """An empty trail has no rounds, and its text can be made."""
    trail = Trail()

    assert (trail.rounds, trail.seconds) == ((), None)
    assert str(trail) == "in all: 0 + 0 tokens"


def test_steps_that_still_run_have_no_duration() -> None:
    """A trail can be read while its turn runs."""
    trail = Trail()
    with (
        Step(ClientCall(Prompt("Hi"), (), False, None), trail.steps),
        Step(MemoryAccess("load", "c-1"), trail.steps),
    ):
        assert str(trail).splitlines()[:2] == ["turn", "memory: load 0 messages of 'c-1'"]
        assert trail.seconds is None
    assert trail.seconds is not None


def test_without_a_trail_nothing_is_kept() -> None:
    """A model that is called directly records no steps."""
    with BLOCKING.observe(MemoryAccess("load", "c-1")) as step:
        step.result = ()
    assert step.seconds is not None
    assert BLOCKING.steps is None


def test_a_copied_context_holds_no_request(ask: Ask) -> None:
    """A pool may keep the context in which a connection was opened."""
    contexts: list[Context] = []

    class Secret:
        """Something of the request's."""

    @tool
    async def keep() -> str:  # old releases of anyio keep what a thread has run
        contexts.append(copy_context())
        return "kept"

    secret = Secret()
    found = weakref.ref(secret)
    model = ScriptedModel(call("keep"), "Hi.")
    client = ChatClient.builder(model).default_tools(keep).default_advisors(Budget()).build()
    ask(client.prompt("Hi").tool_context(secret=secret))

    del secret
    model.prompts.clear()
    gc.collect()
    assert len(contexts) == 1
    assert found() is None


def test_auxiliary_calls_are_no_rounds(ask: Ask) -> None:
    """Model calls of an advisor are auxiliary calls: they count in the usage, but are no rounds."""
    helper = ScriptedModel("a friendly question", chunks=2)

    async def reword(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        said = await ask_model(helper, "Friendlier: Weather?", request.runtime.silent())
        return await call_next(request.mutate(prompt=Prompt(said.text)))

    client = ChatClient.builder(ScriptedModel("Fine.")).default_advisors(reword).build()
    result = ask(client.prompt("Weather?"))
    trail = trail_of(result.response)

    assert result.text == "Fine."
    assert [step.result.text for step in trail.auxiliary_calls] == ["a friendly question"]
    assert ([round_.text for round_ in trail.rounds], trail.usage) == (["Fine."], Usage(20, 10))
    assert "auxiliary call: chat ScriptedModel: stop: a friendly question (10 + 5 tokens" in str(
        trail
    )
    assert [each.text for each in result.answer.round_responses()] == ["Fine."]


@pytest.mark.feature("observation-agents-trail-their-asker")
def test_the_trails_of_agents_are_a_part_of_their_askers(ask: Ask) -> None:
    """They are indented below the tool call, and count in the usage of the turn."""
    agent = ChatClient.builder(ScriptedModel(call("get_weather", '{"city": "Rome"}'), "Sunny."))
    expert = agent.default_tools(get_weather).build().as_tool("expert", "Knows the weather.")
    model = ScriptedModel(call("expert", '{"request": "Rome?"}'), "It is sunny.")
    result = ask(ChatClient.builder(model).default_tools(expert).build().prompt("Weather?"))
    trail = trail_of(result.response)

    assert [inner.usage.input_tokens for inner in trail.inner] == [20]
    assert (trail.usage.input_tokens, result.response.chat_response.usage.input_tokens) == (40, 20)
    assert len(trail.rounds) == 2
    assert "\n        round 2: ScriptedModel, 3 messages, tools: get_weather\n" in str(trail)
    named = [(depth, step.operation.name) for depth, step in trail.tree()]
    at = next(at for at, (_, name) in enumerate(named) if name == "execute_tool expert")
    assert named[at + 1] == (named[at][0] + 1, "invoke_agent")


def test_requests_in_an_advisors_own_step(ask: Ask) -> None:
    """Requests of another client are part of it; the trail of a failure there is complete."""

    async def advise(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        with ON_LOOP.observe(MemoryAccess("load", "c-1")):  # which is in no trail
            await request.runtime.invoke(lambda: other.prompt("?").call().content())
        return await call_next(request)

    other = ChatClient.create(ScriptedModel("fine", OverloadedError("down")))
    client = ChatClient.builder(ScriptedModel("Yes.")).default_advisors(advise).build()
    trail = trail_of(ask(client.prompt("x")).response)
    with pytest.raises(OverloadedError) as caught:
        ask(client.prompt("x"))

    assert (len(trail.inner), trail.usage) == (1, Usage(20, 10))
    depths = [depth for depth, step in trail.tree() if isinstance(step.operation, ClientCall)]
    assert depths == [0, 3]
    assert len(caught.value.trail.inner) == 1
    assert "    round 1: ScriptedModel, 1 message" in str(caught.value.trail)


def left(client: ChatClient, *, blocking: bool) -> Any:
    """Return a stream of *client* that was closed after the first piece of text."""
    if blocking:
        stream = client.prompt("Weather?").stream()
        for _ in stream:
            break
        return stream

    async def read() -> Any:
        stream = client.prompt("Weather?").astream()
        async with stream.content() as pieces:
            await anext(pieces)
        return stream

    return asyncio.run(read())


@pytest.mark.feature("observation-trail-stream-runs-left")
@pytest.mark.parametrize("blocking", [True, False])
def test_a_stream_that_was_left_has_its_trail(blocking: bool) -> None:
    """It has the text and the calls until then, and the usage that was reported."""
    asked = call("get_weather", '{"city": "Rome"}')

    def pieces(text: str) -> list[str]:
        return [text[:3], *("." * 1000)]  # a stream on a loop runs ahead of its reader

    model = ScriptedModel(asked, "Sunny", chunks=pieces)
    client = ChatClient.builder(model).default_tools(get_weather).build()
    stream = left(client, blocking=blocking)
    trail = stream.trail()

    assert [execution.response.data for execution in stream.tool_executions()] == ["sunny in Rome"]
    assert trail.usage == Usage(10, 5)
    assert trail.rounds[1].text.startswith("Sun")
    assert "    left: Sun" in str(trail)
    with pytest.raises(UsageError, match="has not ended"):
        stream.round_responses()


@pytest.mark.parametrize("at", [RoundEnded, ToolCallStarted])
def test_the_trail_of_a_stream_left_between_rounds(at: type) -> None:
    """It has the text of the round, also after a call that the provider refused."""
    refused = ToolCallRefusedError("no", tool_call=call("pay"))
    client = ChatClient.create(ScriptedModel(refused, "Sorry."))
    stream = client.prompt("x").tools(pay).stream()
    events = stream.events()
    next(event for event in events if isinstance(event, at))
    events.close()
    said = next(
        step.result for step in stream.trail().steps if isinstance(step.operation, ModelCall)
    )

    assert [each.name for each in said.output.tool_calls] == ["pay"]


def test_a_stream_has_its_trail_while_it_runs() -> None:
    """Each round is added as it ends; at the end it is that of the response."""
    model = ScriptedModel(call("get_weather", '{"city": "Rome"}'), "Sunny.")
    stream = ChatClient.builder(model).default_tools(get_weather).build().prompt("x").stream()

    assert (str(stream.trail()), stream.tool_executions()) == ("in all: 0 + 0 tokens", ())
    counts = [len(stream.trail().rounds) for _ in stream.events()]
    assert (counts[0], counts[-1]) == (1, 2)
    assert stream.response.trail is not None
    assert stream.response.trail.steps is stream.trail().steps


def test_the_trail_of_an_agent_is_its_own_in_a_stream(ask: Ask) -> None:
    """It is part of its caller's trail, and separate from its rounds."""
    expert = ChatClient.create(ScriptedModel("Sunny.")).as_tool("expert", "Knows the weather.")
    model = ScriptedModel(call("expert", '{"request": "Rome?"}'), "It is sunny.")
    trail = trail_of(ask(ChatClient.create(model).prompt("x").tools(expert)).response)

    assert (len(trail.rounds), len(trail.inner), trail.usage) == (2, 1, Usage(30, 15))
