"""Memory advisors: what is sent to the model and what each end of a turn stores."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Message,
    SystemMessage,
    UserMessage,
    tool,
)
from chatclient.advisors import ToolCallingAdvisor
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.advisors.guardrails.safe_guard import SafeGuardAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor, PromptChatMemoryAdvisor
from chatclient.advisors.retrieval.advisor import ReReadingAdvisor
from chatclient.advisors.tool_loop.advisor import Steering
from chatclient.chain.chain import (
    HIGHEST_PRECEDENCE,
    MEMORY_ORDER,
    TOOL_CALLING_ORDER,
    Advisor,
    AdvisorChain,
    Next,
)
from chatclient.chat.message_merging import begins_turn
from chatclient.chat.messages import Media, Reasoning, ToolResponse, ToolResponseMessage
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse, Generation
from chatclient.chat.tool import CONVERSATION_ID
from chatclient.chat.turn import TURN_KEY
from chatclient.errors import (
    DeadlineExceededError,
    GuardrailError,
    OverloadedError,
    TemplateError,
    ToolExecutionError,
    ToolLoopError,
    UsageError,
)
from chatclient.memory import (
    InMemoryChatMemoryRepository,
    MessageWindowChatMemory,
    SqlChatMemoryRepository,
    conversation_problems,
)
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Answer, Ask, Mode, ScriptedModel, call
from chatclient.tools import (
    PendingTurn,
    ToolApproval,
    ToolCallingManager,
    ToolFailurePolicy,
    ToolLimits,
    tool_callbacks,
)
from tests.support.clock import Clock

INSIDE = TOOL_CALLING_ORDER + 100


@pytest.fixture(params=["outside", "inside"])
def order(request: pytest.FixtureRequest) -> int:
    """Return the orders that put memory outside and inside of the tool loop."""
    outside: int = MessageChatMemoryAdvisor(MessageWindowChatMemory()).order
    return outside if request.param == "outside" else INSIDE


class Talk:
    """A client with memory, with its model and its repository."""

    def __init__(self, *answers: Answer | Callable[[Prompt], Answer], **settings: Any) -> None:
        self.model = ScriptedModel(*answers)
        self.repository = settings.pop("repository", None) or InMemoryChatMemoryRepository()
        self.memory = MessageWindowChatMemory(self.repository)
        kind = settings.pop("kind", MessageChatMemoryAdvisor)
        manager = settings.pop("manager", ToolCallingManager())
        self.client = (
            ChatClient.builder(self.model)
            .default_system("Be brief.")
            .default_tools(look, tell)
            .default_advisors(kind(self.memory, **settings))
            .tool_calling_manager(manager)
            .build()
        )

    def say(self, text: str, conversation: str = "c") -> Any:
        return self.client.prompt(text).conversation(conversation)

    @property
    def stored(self) -> list[Message]:
        """What is remembered; always something that every provider accepts."""
        messages = self.repository.find_by_conversation_id("c")
        assert conversation_problems(messages, ending="answer") == ()
        return messages

    @property
    def shown(self) -> list[list[str]]:
        """What the model was sent each time, in short."""
        return [short(prompt.messages) for prompt in self.model.prompts]


def short(messages: Sequence[Message]) -> list[str]:
    """Return messages in short: `u:text`, `a:text`, `a:(calls)`, `t:(answers)`, `s:text`."""
    lines = []
    for message in messages:
        said = message.text
        if isinstance(message, AssistantMessage) and message.tool_calls:
            said += "(" + ",".join(each.id for each in message.tool_calls) + ")"
        if isinstance(message, ToolResponseMessage):
            said = "(" + ",".join(each.data for each in message.responses) + ")"
        lines.append(f"{message.role[0]}:{said}")
    return lines


@tool
def look(what: str = "it") -> str:
    """Look something up."""
    if what == "fail":
        msg = "no such thing"
        raise ValueError(msg)
    return f"seen {what}"


@tool(return_direct=True)
def tell(what: str = "it") -> str:
    """Return a result directly."""
    return f"told {what}"


TURN = ["u:one", "a:(call_look)", "t:(seen it)", "a:first"]


# --- what the model is shown ----------------------------------------------------------------


@pytest.mark.feature("memory-message-chat-memory-advisor")
def test_the_second_turn_shows_the_first(ask: Ask, order: int) -> None:
    """The prompt has the system text, then the history, then the new message."""
    talk = Talk("hello", "fine", order=order)
    ask(talk.say("hi"))
    ask(talk.say("how are you?"))

    assert talk.shown == [
        ["s:Be brief.", "u:hi"],
        ["s:Be brief.", "u:hi", "a:hello", "u:how are you?"],
    ]
    assert short(talk.stored) == ["u:hi", "a:hello", "u:how are you?", "a:fine"]


@pytest.mark.feature("memory-outside-loop-tool-calls")
def test_tool_calls_are_remembered_completely(ask: Ask, order: int) -> None:
    """Tool calls and results are stored in order, and sent in the next turn."""
    talk = Talk([call("look")], "first", "second", order=order)
    ask(talk.say("one"))
    ask(talk.say("two"))

    assert talk.shown == [
        ["s:Be brief.", "u:one"],
        ["s:Be brief.", *TURN[:3]],
        ["s:Be brief.", *TURN, "u:two"],
    ]
    assert short(talk.stored) == [*TURN, "u:two", "a:second"]


@pytest.mark.feature("memory-inside-loop-stored-message")
def test_each_round_sends_history_and_turn(ask: Ask, order: int) -> None:
    """In the second turn with several rounds, nothing is missing or repeated."""
    talk = Talk(
        "hello",
        [call("look", id="c1"), call("look", id="c2")],
        ["hm", call("look", id="c3")],
        "done",
        order=order,
    )
    ask(talk.say("hi"))
    ask(talk.say("one"))

    begin = ["s:Be brief.", "u:hi", "a:hello", "u:one"]
    rounds = ["a:(c1,c2)", "t:(seen it,seen it)", "a:hm(c3)", "t:(seen it)"]
    assert talk.shown[1:] == [begin, [*begin, *rounds[:2]], [*begin, *rounds]]
    assert short(talk.stored) == [*begin[1:], *rounds, "a:done"]


@pytest.mark.feature("memory-outside-loop-tool-calls")
def test_tool_messages_can_be_left_out(ask: Ask, order: int) -> None:
    """With `tool_messages=False`, only the question and the answer are stored."""
    talk = Talk([call("look")], "first", "second", order=order, tool_messages=False)
    ask(talk.say("one"))
    ask(talk.say("two"))

    assert talk.shown[-1] == ["s:Be brief.", "u:one", "a:first", "u:two"]


@pytest.mark.feature("memory-last-message-request-stored")
def test_everything_new_is_remembered_in_full(ask: Ask, order: int) -> None:
    """All messages of the request with media and metadata, and reasoning with its signature."""
    imported = [UserMessage("before", metadata={"n": 1}), AssistantMessage("answered")]
    answer = AssistantMessage(["yes"], reasoning=[Reasoning("hm", "sig", "anthropic")])
    talk = Talk(answer, order=order)
    request = talk.client.prompt().messages(imported)
    image = Media("image/png", b"png")
    ask(request.user("look", media=image, metadata={"n": 2}).conversation("c"))

    question = UserMessage("look", [image], {"n": 2})
    assert talk.stored == [*imported, question, answer]


def test_conversations_are_apart(ask: Ask, order: int) -> None:
    """A conversation does not contain messages of another one."""
    talk = Talk("one", "two", order=order)
    ask(talk.say("hi", "a"))
    ask(talk.say("hi", "b"))

    assert talk.shown == [["s:Be brief.", "u:hi"]] * 2
    assert sorted(talk.repository.find_conversation_ids()) == ["a", "b"]


@pytest.mark.feature("memory-conversation-id-required")
def test_a_conversation_without_an_id_is_an_error(ask: Ask, order: int) -> None:
    """The error names the method, and nothing is sent."""
    talk = Talk("one", order=order)

    with pytest.raises(UsageError, match=r"\.conversation\("):
        ask(talk.client.prompt("hi"))
    with pytest.raises(UsageError, match="blank"):
        ask(talk.client.prompt("hi").advisor_params({CONVERSATION_ID: " "}))
    assert talk.model.prompts == []


@pytest.mark.feature("memory-conversation-id-required")
def test_an_id_may_be_any_value_that_has_a_text(ask: Ask, order: int) -> None:
    """Numbers and UUIDs are converted to text."""
    talk = Talk("one", order=order)
    ask(talk.client.prompt("hi").advisor_params({CONVERSATION_ID: 17}))

    assert talk.repository.find_conversation_ids() == ["17"]


@pytest.mark.feature("memory-prompt-holds-already")
def test_resent_history_is_not_repeated(ask: Ask, order: int) -> None:
    """If the application sends the complete conversation, only new messages are stored."""
    talk = Talk("hello", "fine", "bye", order=order)
    ask(talk.say("hi"))
    whole = [*talk.stored, UserMessage("more")]
    ask(talk.client.prompt(whole).conversation("c"))
    before = [UserMessage("long ago"), AssistantMessage("indeed")]
    ask(talk.client.prompt([*before, *talk.stored, UserMessage("end")]).conversation("c"))

    assert talk.shown[1] == ["s:Be brief.", "u:hi", "a:hello", "u:more"]
    assert talk.shown[2][1:3] == ["u:long ago", "a:indeed"]
    assert short(talk.stored) == ["u:hi", "a:hello", "u:more", "a:fine", "u:end", "a:bye"]


@pytest.mark.parametrize("words", [False, True])
def test_partly_resent_history(ask: Ask, order: int, words: bool) -> None:
    """An application may resend some of the conversation, with tool calls or without."""
    talk = Talk("hello", [call("look")], "first", "bye", order=order)
    ask(talk.say("hi"))
    turn = ask(talk.say("one")).answer.new_messages()
    last = [turn[0], turn[-1]] if words else turn
    ask(talk.client.prompt([*last, UserMessage("end")]).conversation("c"))

    assert talk.shown[-1] == ["s:Be brief.", "u:hi", "a:hello", *short(last), "u:end"]
    assert short(talk.stored) == ["u:hi", "a:hello", *TURN, "u:end", "a:bye"]


def test_example_messages_are_no_history(ask: Ask, order: int) -> None:
    """Examples in a request are sent and stored with each request."""
    talk = Talk("yes", "yes", order=order)
    example = [UserMessage("2+2=4?"), AssistantMessage("yes")]
    for text in ("1+1=2?", "3+3=6?"):
        ask(talk.client.prompt([*example, UserMessage(text)]).conversation("c"))

    turn = ["u:2+2=4?", "a:yes", "u:1+1=2?", "a:yes", "u:2+2=4?", "a:yes", "u:3+3=6?"]
    assert talk.shown[-1] == ["s:Be brief.", *turn]
    assert short(talk.stored) == [*turn, "a:yes"]


def test_default_messages_are_not_stored(ask: Ask, order: int) -> None:
    """They precede the history, once."""
    talk = Talk("first", [call("look")], "second", order=order)
    client = (
        talk.client.mutate().default_messages(UserMessage("2+2"), AssistantMessage("4")).build()
    )
    ask(client.prompt("one").conversation("c"))
    ask(client.prompt("two").conversation("c"))

    begin = ["s:Be brief.", "u:2+2", "a:4", "u:one", "a:first", "u:two"]
    tools = ["a:(call_look)", "t:(seen it)"]
    assert talk.shown[1:] == [begin, [*begin, *tools]]
    assert short(talk.stored) == [*begin[3:], *tools, "a:second"]


def test_removed_examples_hide_no_message(ask: Ask, order: int) -> None:
    """The messages that replace them are stored."""
    talk = Talk("first", order=order)
    examples = UserMessage("2+2"), AssistantMessage("4")

    async def plain(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        messages = [m for m in request.prompt.messages if m not in examples]
        prompt = Prompt(messages, request.prompt.options)
        return await call_next(request.mutate(prompt=prompt))

    plain.order = HIGHEST_PRECEDENCE + 1  # type: ignore[attr-defined]
    client = talk.client.mutate().default_messages(*examples).default_advisors(plain).build()
    ask(client.prompt("one").conversation("c"))

    assert short(talk.stored) == ["u:one", "a:first"]


@pytest.mark.feature("memory-first-system-message-moves")
def test_system_messages_are_not_stored(ask: Ask, order: int) -> None:
    """Those that the application put into the memory are sent with each request."""
    talk = Talk("one", order=order)
    talk.memory.add("c", [SystemMessage("The user is called Ada."), *greeting()])
    ask(talk.client.prompt().messages(SystemMessage("And polite.")).user("hi").conversation("c"))

    systems = ["s:Be brief.", "s:And polite.", "s:The user is called Ada."]
    assert talk.shown == [[*systems, "u:good day", "a:good day", "u:hi"]]
    assert short(talk.stored) == [systems[2], "u:good day", "a:good day", "u:hi", "a:one"]


def greeting() -> list[Message]:
    return [UserMessage("good day"), AssistantMessage("good day")]


@pytest.mark.parametrize("again", [2, 4], ids=["the last turn again", "all of it again"])
def test_system_messages_with_resent_history(ask: Ask, order: int, again: int) -> None:
    """System messages of the memory are sent, although the application resends the conversation."""
    talk = Talk("first", "second", "third", order=order)
    talk.memory.add("c", SystemMessage("Ada is a pilot."))
    ask(talk.say("one"))
    ask(talk.say("two"))
    told = [m for m in talk.memory.get("c") if m.role != "system"][-again:]
    ask(talk.client.prompt([*told, UserMessage("three")]).conversation("c"))

    turns = ["u:one", "a:first", "u:two", "a:second", "u:three"]
    assert talk.shown[-1] == ["s:Be brief.", "s:Ada is a pilot.", *turns]
    assert short(talk.memory.get("c")) == ["s:Ada is a pilot.", *turns, "a:third"]


def test_an_inner_advisor_may_change_the_message(ask: Ask, order: int) -> None:
    """The original user message is stored, and the answer as the inner advisors return it."""

    async def augment(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        prompt = request.prompt.augment_user_message(lambda text: f"{text} (context: x)")
        return await call_next(request.mutate(prompt=prompt))

    talk = Talk("hello", "fine", order=order)
    client = talk.client.mutate().default_advisors(augment).build()
    ask(client.prompt("hi").conversation("c"))
    ask(client.prompt("well?").conversation("c"))

    assert talk.shown[1][1:] == ["u:hi", "a:hello", "u:well? (context: x)"]
    assert short(talk.stored) == ["u:hi", "a:hello", "u:well?", "a:fine"]


def test_an_advisor_that_asks_again_inside_the_loop(ask: Ask, order: int) -> None:
    """Attempts that an advisor rejects are no part of the conversation."""

    async def insist(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        if response.chat_response.text != "bad":
            return response
        again = request.prompt.append(AssistantMessage("bad"), UserMessage("better!"))
        return await call_next(request.mutate(prompt=again))

    talk = Talk([call("look")], "bad", "good", order=order)
    client = talk.client.mutate().default_advisors(insist).build()
    ask(client.prompt("one").conversation("c"))

    assert talk.shown[-1] == ["s:Be brief.", *TURN[:3], "a:bad", "u:better!"]
    assert short(talk.stored) == [*TURN[:3], "a:good"]


def test_an_advisor_that_repeats_the_complete_turn(ask: Ask, order: int) -> None:
    """A request is one turn: the last question and answer are stored, and all tool rounds."""

    async def twice(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        return await call_next(
            request.mutate(
                prompt=request.prompt.with_messages([UserMessage("two")]), context=response.context
            )
        )

    talk = Talk([call("look")], "first", "second", order=order)
    outer: Any = twice
    outer.order = -(2**31) + 1
    client = talk.client.mutate().default_advisors(outer).build()
    response = ask(client.prompt("one").conversation("c")).response

    assert talk.shown[-1] == ["u:two"]
    assert short(talk.stored) == ["u:two", *TURN[1:3], "a:second"]
    assert [key for key in response.context if key.startswith("chat_memory")] == [CONVERSATION_ID]


def test_two_memories_in_one_chain(ask: Ask, order: int) -> None:
    """Each memory stores the turn, and not the history that the other one adds."""
    talk = Talk("hello", [call("look")], "fine", order=order)
    second = InMemoryChatMemoryRepository()
    advisor = MessageChatMemoryAdvisor(MessageWindowChatMemory(second, max_messages=2), order=order)
    client = talk.client.mutate().default_advisors(advisor).build()
    ask(client.prompt("hi").conversation("c"))
    ask(client.prompt("one").conversation("c"))

    assert talk.stored == second.find_by_conversation_id("c")
    assert short(talk.stored) == ["u:hi", "a:hello", "u:one", *TURN[1:3], "a:fine"]


@pytest.mark.parametrize("sizes", [(2, 20), (20, 2), (4, 20)])
@pytest.mark.parametrize("places", [(MEMORY_ORDER - 1, MEMORY_ORDER), (INSIDE - 1, INSIDE)])
def test_two_memories_that_show_more_and_less(
    ask: Ask, sizes: tuple[int, int], places: tuple[int, int]
) -> None:
    """Messages in both histories are sent once in each round; the inner memory adds older ones."""
    model = ScriptedModel("a", "b", [call("look")], "c")
    memories = [MessageWindowChatMemory(max_messages=size) for size in sizes]
    advisors = map(MessageChatMemoryAdvisor, memories)
    for advisor, order in zip(both := list(advisors), places, strict=True):
        advisor.order = order
    client = ChatClient.builder(model).default_tools(look).default_advisors(*both).build()
    for text in ("1", "2", "3"):
        ask(client.prompt(text).conversation("c"))

    said = ["u:1", "a:a", "u:2", "a:b", "u:3", "a:(call_look)", "t:(seen it)", "a:c"]
    assert [short(prompt.messages) for prompt in model.prompts[2:]] == [said[:5], said[:7]]
    for memory in memories:
        assert short(memory.repository.find_by_conversation_id("c")) == said


def test_a_memory_that_comes_later_keeps_what_is_new(ask: Ask, order: int) -> None:
    """A memory that is added later stores only the new turn."""
    talk = Talk("hello", "fine", order=order)
    ask(talk.say("hi"))
    later = InMemoryChatMemoryRepository()
    advisor = MessageChatMemoryAdvisor(MessageWindowChatMemory(later), order=order + 1)
    ask(talk.client.mutate().default_advisors(advisor).build().prompt("one").conversation("c"))

    assert short(talk.stored) == ["u:hi", "a:hello", "u:one", "a:fine"]
    assert short(later.find_by_conversation_id("c")) == ["u:one", "a:fine"]


# --- what every ending leaves behind --------------------------------------------------------


def remembered_after(talk: Talk, ask: Ask, error: type[BaseException]) -> list[str]:
    """Return the stored messages after a failed turn; check that the next turn works."""
    ask(talk.say("hi"))
    with pytest.raises(error):
        ask(talk.say("one"))
    left = short(talk.stored)
    ask(talk.say("again"))
    assert talk.shown[-1] == ["s:Be brief.", *left, "u:again"]
    return left


@pytest.mark.feature("memory-failed-cancelled-turn-leaves")
def test_a_failing_model_leaves_nothing(ask: Ask, order: int) -> None:
    """A failed model call stores nothing, and the next turn works."""
    talk = Talk("hello", OverloadedError("busy"), "fine", order=order)

    assert remembered_after(talk, ask, OverloadedError) == ["u:hi", "a:hello"]


@pytest.mark.feature("memory-failed-cancelled-turn-leaves")
def test_a_failed_model_call_stores_nothing(ask: Ask, order: int) -> None:
    """A call before the failure is not stored, because it has no answer."""
    talk = Talk("hello", [call("look")], OverloadedError("busy"), "fine", order=order)

    assert remembered_after(talk, ask, OverloadedError) == ["u:hi", "a:hello"]


def test_a_tool_error_that_is_raised_leaves_nothing(ask: Ask, order: int) -> None:
    """If the failure policy raises, nothing is stored."""
    manager = ToolCallingManager(exception_processor=ToolFailurePolicy(always_raise=True))
    talk = Talk("hello", [call("look", '{"what": "fail"}')], "fine", order=order, manager=manager)

    assert remembered_after(talk, ask, ToolExecutionError) == ["u:hi", "a:hello"]


def test_a_limit_that_is_raised_leaves_nothing(ask: Ask, order: int) -> None:
    """The error has the history; nothing is stored."""
    limits = ToolLimits(max_rounds=1, on_exceeded="raise")
    manager = ToolCallingManager(limits=limits)
    talk = Talk("hello", [call("look")], "fine", order=order, manager=manager)

    assert remembered_after(talk, ask, ToolLoopError) == ["u:hi", "a:hello"]


def test_a_limit_that_ends_the_turn_stores_it(ask: Ask, order: int) -> None:
    """Calls, results and the text about the limit are stored."""
    manager = ToolCallingManager(limits=ToolLimits(max_rounds=1, on_exceeded="partial"))
    talk = Talk([call("look")], "fine", order=order, manager=manager)
    text = ask(talk.say("one")).text
    ask(talk.say("again"))

    assert text
    assert talk.shown[-1] == ["s:Be brief.", *TURN[:3], f"a:{text}", "u:again"]


def test_a_last_answer_at_a_limit_is_stored(ask: Ask, order: int) -> None:
    """The model is called once more with the complete turn, and its answer is stored."""
    manager = ToolCallingManager(limits=ToolLimits(max_rounds=1, on_exceeded="final_answer"))
    talk = Talk("hello", [call("look")], "first", order=order, manager=manager)
    ask(talk.say("hi"))
    ask(talk.say("one"))

    assert talk.shown[-1] == ["s:Be brief.", "u:hi", "a:hello", *TURN[:3]]
    assert short(talk.stored) == ["u:hi", "a:hello", *TURN]


@pytest.mark.feature("memory-direct-results-memory")
def test_a_direct_result_is_remembered_as_the_answer(ask: Ask, order: int) -> None:
    """The result of a tool that returns directly is stored as the answer."""
    talk = Talk([call("tell")], "fine", order=order)
    ask(talk.say("one"))
    ask(talk.say("again"))

    said = ["u:one", "a:(call_tell)", "t:(told it)", "a:told it"]
    assert talk.shown[-1] == ["s:Be brief.", *said, "u:again"]


@pytest.mark.feature("memory-direct-results-memory")
def test_several_direct_results_are_one_answer(ask: Ask, order: int) -> None:
    """The results are stored as one answer, with blank lines between."""
    talk = Talk([call("tell", id="c1"), call("tell", '{"what": "more"}', id="c2")], order=order)
    ask(talk.say("one"))

    assert short(talk.stored)[-1] == "a:told it\n\ntold more"


@pytest.mark.feature("memory-empty-messages-stored")
@pytest.mark.parametrize(
    "answer",
    [
        AssistantMessage(""),
        AssistantMessage("  \n"),
        ChatResponse(),
        AssistantMessage([Reasoning("")]),
    ],
    ids=["empty", "blank", "none", "reasoning only"],
)
def test_no_answer_leaves_nothing(ask: Ask, order: int, answer: Answer) -> None:
    """A question without an answer is not stored, because it would precede the next question."""
    talk = Talk(answer, "fine", order=order)
    ask(talk.say("one"))
    assert talk.stored == []

    ask(talk.say("two"))
    assert talk.shown[-1] == ["s:Be brief.", "u:two"]


@pytest.mark.feature("memory-empty-messages-stored")
@pytest.mark.parametrize("nothing", ["", " \n", AssistantMessage([Reasoning("Done.")])])
def test_tool_calls_are_stored_without_an_answer(ask: Ask, order: int, nothing: Answer) -> None:
    """Otherwise the model would repeat them; the next message begins a new turn."""
    talk = Talk([call("look")], nothing, [call("look")], "second", order=order)
    ask(talk.say("one"))
    assert short(talk.stored) == TURN[:3]
    ask(talk.say("two"))

    assert talk.shown[2] == ["s:Be brief.", *TURN[:3], "u:two"]
    assert short(talk.stored) == [*TURN[:3], "u:two", *TURN[1:3], "a:second"]
    assert [at for at in range(7) if begins_turn(talk.stored, at)] == [0, 3]


def test_a_repeated_question_is_no_resent_history(ask: Ask, order: int) -> None:
    """A repeated question without an answer continues the conversation."""
    talk = Talk([call("look")], "", "second", order=order)
    ask(talk.say("one"))
    ask(talk.say("one"))

    assert talk.shown[2] == ["s:Be brief.", *TURN[:3], "u:one"]
    assert short(talk.stored) == [*TURN[:3], "u:one", "a:second"]


@pytest.mark.parametrize("stored", [True, False])
def test_resent_history_without_an_answer(ask: Ask, order: int, stored: bool) -> None:
    """The turn is stored once, although `messages()` ends with an empty answer."""
    talk = Talk([call("look")], "", "second", order=order)
    said = ask(talk.say("one")).answer.messages()
    whole = [*(talk.stored if stored else said), UserMessage("two")]
    ask(talk.client.prompt().messages(*whole).conversation("c"))

    assert talk.shown[2] == ["s:Be brief.", *short(whole)]
    assert short(talk.stored) == [*TURN[:3], "u:two", "a:second"]


def test_a_retry_repeats_no_tool_call(ask: Ask, order: int) -> None:
    """A second attempt continues from the tool results, and the turn is stored once."""

    def has_content(answer: ChatResponse) -> GuardrailResult:
        if answer.text:
            return GuardrailResult.success()
        return GuardrailResult.reprompt("no text", "Say something.")

    talk = Talk([call("look")], "", "second", order=order)
    ask(talk.say("one").advisors(OutputGuardrailAdvisor(has_content, order=MEMORY_ORDER - 1)))

    assert talk.shown[-1] == ["s:Be brief.", *TURN[:3], "u:Say something."]
    assert short(talk.stored) == [*TURN[:3], "a:second"]


def around(result: GuardrailResult) -> OutputGuardrailAdvisor:
    """Return a guard around the memory that returns *result* for a bad answer."""
    return OutputGuardrailAdvisor(
        lambda answer: result if "bad" in answer.text else None, order=MEMORY_ORDER - 1
    )


def test_a_retry_with_a_correction(ask: Ask, order: int) -> None:
    """Rejected answers and corrections are sent to the model, and not stored."""
    talk = Talk("first", [call("look")], "bad", "still bad", "good", order=order)
    ask(talk.say("one"))
    better = GuardrailResult.reprompt("bad", "Better!")
    request = talk.say("two").advisors(around(better)).advisor_params({TURN_KEY: "job 1"})

    assert ask(request).text == "good"
    turn = ["u:one", "a:first", "u:two", *TURN[1:3]]
    rejected = ["a:bad", "u:Better!", "a:still bad", "u:Better!"]
    assert talk.shown[-1] == ["s:Be brief.", *turn, *rejected]
    assert short(talk.stored) == [*turn, "a:good"]


def test_a_retry_stores_the_last_answer(ask: Ask, order: int) -> None:
    """The tool calls are made once."""
    talk = Talk("first", [call("look")], "bad", "good", order=order)
    ask(talk.say("one"))
    ask(talk.say("two").advisors(around(GuardrailResult.retry("bad"))))

    turn = ["u:one", "a:first", "u:two", *TURN[1:3]]
    assert talk.shown[-1] == ["s:Be brief.", *turn]
    assert short(talk.stored) == [*turn, "a:good"]


def test_refused_answers_are_not_stored(ask: Ask, order: int) -> None:
    """The request fails, although the memory has seen an answer."""
    talk = Talk([call("look")], "bad", "bad", "bad", "fine", order=order)
    with pytest.raises(GuardrailError):
        ask(talk.say("one").advisors(around(GuardrailResult.reprompt("bad", "Better!"))))
    assert talk.stored == []

    ask(talk.say("two"))
    assert talk.shown[-1] == ["s:Be brief.", "u:two"]


def test_failures_after_the_answer_store_nothing(ask: Ask, order: int) -> None:
    """A turn is stored when the request has its response, by all memories or by none."""

    async def fails(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        raise LookupError

    fails.order = MEMORY_ORDER - 1  # type: ignore[attr-defined]
    talk = Talk([call("look")], "first", order=order)
    other = MessageWindowChatMemory()
    with pytest.raises(LookupError):
        ask(talk.say("one").advisors(fails, MessageChatMemoryAdvisor(other, order=order + 1)))

    assert (talk.stored, other.get("c")) == ([], [])


def test_a_failed_retry_stores_nothing(ask: Ask, order: int) -> None:
    """The first answer was rejected, and the returned one is not the model's."""

    async def apologises(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        try:
            return await call_next(request)
        except OverloadedError:
            return ChatClientResponse(ChatResponse.of("Sorry."), request.context)

    apologises.order = MEMORY_ORDER - 1  # type: ignore[attr-defined]
    talk = Talk("first", OverloadedError("busy", provider="test"), order=order)

    response = ask(talk.say("one").advisors(apologises)).response

    assert response.chat_response.text == "Sorry."
    assert talk.stored == []


@pytest.mark.parametrize("tool_messages", [True, False])
def test_an_answer_that_comes_after_none_is_remembered(
    ask: Ask, order: int, tool_messages: bool
) -> None:
    """It answers the question, from what the tools returned before."""
    more = GuardrailResult.retry("no text")
    guard = OutputGuardrailAdvisor(lambda a: None if a.text else more, order=MEMORY_ORDER - 1)
    talk = Talk([call("look")], "", "good", order=order, tool_messages=tool_messages)
    ask(talk.say("one").advisors(guard))

    assert short(talk.stored) == ["u:one", *(TURN[1:3] if tool_messages else []), "a:good"]


def test_a_correction_without_an_answer(ask: Ask, order: int) -> None:
    """It is merged with the question: the model is not sent two user messages in a row."""
    better = GuardrailResult.reprompt("bad", "Better!")
    guard = OutputGuardrailAdvisor(
        lambda answer: None if answer.text == "good" else better,
        max_retries=3,
        order=MEMORY_ORDER - 1,
    )
    talk = Talk("first", "", " ", "bad", "good", order=order)
    ask(talk.say("one"))
    ask(talk.say("two").advisors(guard))

    asked = ["u:one", "a:first", "u:two\n\nBetter!\n\nBetter!", "a:bad", "u:Better!"]
    assert talk.shown[1:3] == [
        ["s:Be brief.", *asked[:2], "u:two"],
        ["s:Be brief.", *asked[:2], "u:two\n\nBetter!"],
    ]
    assert talk.shown[-1] == ["s:Be brief.", *asked]
    assert short(talk.stored) == [*asked[:2], "u:two", "a:good"]


def test_a_retry_of_a_continued_answer(ask: Ask, order: int) -> None:
    """The prompt never has two assistant messages in a row."""
    better = GuardrailResult.reprompt("bad", "Better!")
    inner = OutputGuardrailAdvisor(lambda answer: better if "worse" in answer.text else None)
    talk = Talk(" upon a bad time", [call("look")], " worse", "good", order=order)
    begun = [UserMessage("one"), AssistantMessage("Once")]
    request = talk.client.prompt(begun).conversation("c").advisors(around(better), inner)

    assert ask(request).text == "good"
    told = ["u:one", "a:Once upon a bad time", "u:Better!"]
    looked = [*told, "a:(call_look)", "t:(seen it)"]
    assert talk.shown[1:] == [
        ["s:Be brief.", *told],
        ["s:Be brief.", *looked],
        ["s:Be brief.", *looked, "a: worse", "u:Better!"],
    ]
    assert short(talk.stored) == ["u:one", "a:Once(call_look)", "t:(seen it)", "a:good"]


@pytest.mark.parametrize("tool_messages", [True, False])
def test_a_retry_of_a_continued_answer_with_tools(
    ask: Ask, order: int, tool_messages: bool
) -> None:
    """Tool results are stored once, or not at all."""
    talk = Talk([call("look")], " bad", "good", order=order, tool_messages=tool_messages)
    begun = [UserMessage("one"), AssistantMessage("Once")]
    again = around(GuardrailResult.reprompt("bad", "Better!"))
    ask(talk.client.prompt(begun).conversation("c").advisors(again))

    looked = ["u:one", "a:Once(call_look)", "t:(seen it)", "a: bad"]
    kept = [*looked[:3], "a:good"] if tool_messages else ["u:one", "a:Oncegood"]
    assert talk.shown[-1] == ["s:Be brief.", *looked, "u:Better!"]
    assert short(talk.stored) == kept


def test_calls_continue_an_answer_of_the_request(ask: Ask, order: int) -> None:
    """They are sent and stored as one message with it."""
    talk = Talk([call("look")], "It is.", order=order)
    begun = [UserMessage("one"), AssistantMessage("Once")]
    ask(talk.client.prompt(begun).conversation("c"))

    assert talk.shown[1] == ["s:Be brief.", "u:one", "a:Once(call_look)", "t:(seen it)"]


def test_two_calls_of_an_outer_advisor_are_one_turn(ask: Ask, order: int) -> None:
    """It sends the same prompt again; the tool rounds of both attempts are in the record."""

    async def twice(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        return await call_next(request)

    outer: Any = twice
    outer.order = MEMORY_ORDER - 1
    talk = Talk([call("look")], "first", "second", order=order)
    ask(talk.say("one").advisors(outer).advisor_params({TURN_KEY: "job 1"}))

    assert talk.shown[-1] == ["s:Be brief.", "u:one"]
    assert short(talk.stored) == [*TURN[:3], "a:second"]


def test_a_repeated_job_is_stored_once(ask: Ask, order: int) -> None:
    """The turn has the answer that the outer guard accepted."""
    talk = Talk("bad", "good", "bad", "better", order=order)
    guard = around(GuardrailResult.reprompt("bad", "Better!"))
    for _ in range(2):
        ask(talk.say("one").advisors(guard).advisor_params({TURN_KEY: "job 1"}))

    assert short(talk.stored) == ["u:one", "a:good"]


def test_tool_results_without_an_answer_are_stored(ask: Ask, order: int) -> None:
    """User input during the turn is not: it has no answer, and would precede the next question."""
    steering = Steering()
    steering.send("Quick!")
    talk = Talk([call("look")], "", "second", order=order)
    ask(talk.say("one").advisors(steering))
    assert talk.shown[1] == ["s:Be brief.", *TURN[:3], "u:Quick!"]
    ask(talk.say("two"))

    assert short(talk.stored) == [*TURN[:3], "u:two", "a:second"]


def test_user_input_without_tool_messages(ask: Ask, order: int) -> None:
    """It is merged into the question, because no answer is between them."""
    talk = Talk([call("look")], "first", [call("look")], "second", order=order, tool_messages=False)
    for begun in ([], [AssistantMessage("Well:")]):
        steering = Steering()
        steering.send("Quick!")
        steering.send("Please.")
        request = talk.client.prompt([UserMessage("one"), *begun]).conversation("c")
        ask(request.advisors(steering))

    first = ["u:one\n\nQuick!\n\nPlease.", "a:first"]
    assert short(talk.stored) == [*first, "u:one", "a:Well:", "u:Quick!\n\nPlease.", "a:second"]


def test_user_input_keeps_the_question(ask: Ask, order: int) -> None:
    """The messages before the question and its metadata are stored as well."""
    steering = Steering()
    steering.send("Quick!")
    talk = Talk([call("look")], "first", order=order, tool_messages=False)
    begun = [UserMessage("hi"), AssistantMessage("hello"), UserMessage("one", metadata={"n": 1})]
    ask(talk.client.prompt(begun).conversation("c").advisors(steering))

    assert short(talk.stored) == ["u:hi", "a:hello", "u:one\n\nQuick!", "a:first"]
    assert [message.metadata for message in talk.stored[:3]] == [{}, {}, {"n": 1}]


def test_a_question_without_an_answer_is_not_stored(ask: Ask, order: int) -> None:
    """Without tool messages there is no answer; providers reject two questions in a row."""
    talk = Talk([call("look")], "", order=order, tool_messages=False)
    ask(talk.say("one"))

    assert talk.stored == []


def test_each_retried_turn_is_stored(ask: Ask, order: int) -> None:
    """Turns without a key are distinguished, so that both retried turns are stored."""
    talk = Talk("bad", "good", "also bad", "fine", order=order)
    guard = around(GuardrailResult.reprompt("bad", "Better!"))
    for text in ("one", "two"):
        ask(talk.say(text).advisors(guard))

    assert short(talk.stored) == ["u:one", "a:good", "u:two", "a:fine"]


def test_two_memories_of_one_conversation_know_their_own(ask: Ask) -> None:
    """One memory stores tool messages and the other does not, while a guard retries."""
    talk = Talk([call("look")], "bad", "good")
    other = InMemoryChatMemoryRepository()
    memory = MessageWindowChatMemory(other)
    inner = MessageChatMemoryAdvisor(memory, tool_messages=False, order=MEMORY_ORDER + 1)
    ask(talk.say("one").advisors(inner, around(GuardrailResult.reprompt("bad", "Better!"))))

    assert short(talk.stored) == [*TURN[:3], "a:good"]
    assert short(other.find_by_conversation_id("c")) == ["u:one", "a:good"]


class Failing(InMemoryChatMemoryRepository):
    """A repository that cannot be written to at first."""

    down = True

    async def append(self, *given: Any, **named: Any) -> Any:
        if self.down:
            self.down = False
            msg = "it is down"
            raise ConnectionError(msg)
        return await super().append(*given, **named)


def test_a_turn_that_could_not_be_stored_fails(ask: Ask, order: int) -> None:
    """The error is raised after all advisors, so that none retries; the next request works."""
    caught: list[Exception] = []

    async def watches(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            return await call_next(request)
        except ConnectionError as error:
            caught.append(error)
            raise

    watches.order = MEMORY_ORDER - 1  # type: ignore[attr-defined]
    talk = Talk("lost", "kept", order=order, repository=Failing())
    with pytest.raises(ConnectionError):
        ask(talk.say("one").advisors(watches))
    ask(talk.say("one"))

    assert talk.shown == [["s:Be brief.", "u:one"]] * 2
    assert short(talk.stored) == ["u:one", "a:kept"]
    assert caught == []


def test_a_memory_is_not_called_without_need(ask: Ask, order: int, clock: Clock) -> None:
    """The memory is not called after the deadline, or to store an empty turn."""
    asked: list[str] = []

    class Noting(MessageWindowChatMemory):
        async def load(self, conversation_id: str, runtime: Runtime) -> tuple[Message, ...]:
            asked.append("load")
            return await super().load(conversation_id, runtime)

        async def append(self, *given: Any, **named: Any) -> None:
            asked.append("append")
            await super().append(*given, **named)

    async def wait(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        clock.advance(60)
        return await call_next(request)

    wait.order = HIGHEST_PRECEDENCE  # type: ignore[attr-defined]
    memory = MessageChatMemoryAdvisor(Noting(), order=order)
    request = ChatClient.create(ScriptedModel("")).prompt("one").conversation("c").advisors(memory)
    with pytest.raises(DeadlineExceededError):
        ask(request.advisors(wait).deadline(50))
    assert asked == []
    ask(request)
    assert asked == ["load"]


def refusal() -> ChatResponse:
    return ChatResponse.of("I cannot help with that.", "content_filter")


def test_an_answer_that_was_withheld_leaves_nothing(ask: Ask, order: int) -> None:
    """Neither a refused answer nor the refusal is sent to the model again."""
    talk = Talk(refusal(), order=order)

    assert ask(talk.say("one")).text == "I cannot help with that."
    assert talk.stored == []


@pytest.mark.feature("memory-empty-messages-stored")
def test_calls_before_a_withheld_answer_are_stored(ask: Ask, order: int) -> None:
    """The last result is replaced by a note, because it may be the reason.

    Without the calls, the model would repeat them.
    """
    talk = Talk([call("look")], [call("look")], refusal(), "second", order=order)
    ask(talk.say("one"))
    ask(talk.say("two"))

    unseen = "t:(What 'look' returned is not shown: the answer to it was withheld.)"
    assert talk.shown[-1] == ["s:Be brief.", *TURN[:3], TURN[1], unseen, "u:two"]
    assert short(talk.stored)[-2:] == ["u:two", "a:second"]
    assert [at for at in range(7) if begins_turn(talk.stored, at)] == [0, 5]


def test_failed_calls_before_a_withheld_answer(ask: Ask, order: int) -> None:
    """They are stored as failed."""
    talk = Talk([call("look"), call("see")], refusal(), order=order)
    ask(talk.say("one"))

    results = talk.stored[-1]
    assert isinstance(results, ToolResponseMessage)
    assert [each.is_error for each in results.responses] == [False, True]
    assert "see" in results.responses[1].data
    assert "not shown" not in results.responses[1].data


def test_calls_before_a_guarded_answer_are_stored(ask: Ask, order: int) -> None:
    """They are stored for a direct result, and for an answer of the model."""
    for answers in ([[call("tell")]], [[call("look")], "You were told it."]):
        talk = Talk(*answers, order=order)
        ask(talk.say("one").advisors(SafeGuardAdvisor("told it")))
        assert [m.role for m in talk.stored] == ["user", "assistant", "tool"]
        assert "told it" not in str(talk.stored)


def test_an_answer_continues_that_of_the_request(ask: Ask, order: int) -> None:
    """Both are one message, also in the messages of the response."""
    talk = Talk("hello", " upon a time", [call("look")], "It is.", order=order)
    ask(talk.say("one"))
    begun = [UserMessage("two"), AssistantMessage("Once")]
    answers = [ask(talk.client.prompt(begun).conversation("c")).answer for _ in range(2)]

    assert talk.shown[1] == ["s:Be brief.", "u:one", "a:hello", "u:two", "a:Once"]
    told = ["u:two", "a:Once upon a time"]
    looked = ["u:two", "a:Once(call_look)", TURN[2], "a:It is."]
    assert short(talk.stored) == ["u:one", "a:hello", *told, *looked]
    assert [short(answer.messages()) for answer in answers] == [told, looked]


@pytest.mark.parametrize("before", [(), ([call("look")],)])
def test_a_paused_answer_is_stored_when_it_ends(ask: Ask, order: int, before: Any) -> None:
    """The two responses are stored as one message."""
    paused = ChatResponse((Generation(AssistantMessage("Well: "), None, "pause_turn"),))
    talk = Talk("hello", *before, paused, "first", "second", order=order)
    ask(talk.say("zero"))
    answer = ask(talk.say("one")).answer
    assert short(talk.stored) == ["u:zero", "a:hello"]

    ask(talk.client.prompt(answer.messages()).conversation("c"))
    turn = [*(TURN[:3] if before else TURN[:1]), "a:Well: first"]
    assert short(talk.stored) == ["u:zero", "a:hello", *turn]
    ask(talk.say("two"))
    assert talk.shown[-1] == ["s:Be brief.", "u:zero", "a:hello", *turn, "u:two"]


def test_a_turn_of_an_own_loop_is_stored_at_its_end(ask: Ask, order: int) -> None:
    """In a loop of the application, the turn is stored when it has its answer."""
    talk = Talk([call("look")], "first", "second", order=order)
    request = talk.say("one").tool_calling(False)
    response = ask(request).response.chat_response
    assert talk.stored == []

    answers = ToolResponseMessage([ToolResponse("call_look", "look", "seen it")])
    assert response.output is not None
    history = [UserMessage("one"), response.output, answers]
    ask(talk.client.prompt(history).conversation("c").tool_calling(False))
    assert short(talk.stored) == TURN
    ask(talk.say("two").tool_calling(False))
    assert talk.shown[-1] == ["s:Be brief.", *TURN, "u:two"]


@pytest.mark.feature("memory-empty-messages-stored")
def test_a_request_without_a_user_message_stores_nothing(ask: Ask, order: int) -> None:
    """A request of system messages only is not stored, because it has no user message."""
    talk = Talk("hello", order=order)

    assert ask(talk.client.prompt().conversation("c")).text == "hello"
    assert talk.stored == []


@pytest.mark.feature("memory-turn-key-remembered-once")
def test_a_turn_with_the_same_key_is_remembered_once(ask: Ask, order: int) -> None:
    """A job that is delivered twice is answered twice and stored once."""
    talk = Talk("hello", "hello again", order=order)
    for _ in range(2):
        ask(talk.say("hi").advisor_params({TURN_KEY: "job 1"}))

    assert short(talk.stored) == ["u:hi", "a:hello"]


# --- leaving early --------------------------------------------------------------------------


@pytest.mark.feature("memory-failed-cancelled-turn-leaves")
def test_an_interrupt_leaves_nothing(order: int) -> None:
    """`KeyboardInterrupt` in a tool stores nothing."""

    @tool
    def stop() -> str:
        """Press Ctrl-C."""
        raise KeyboardInterrupt

    talk = Talk([call("stop")], "fine", order=order)
    with pytest.raises(KeyboardInterrupt):
        talk.say("one").tools(stop).call().content()
    assert talk.stored == []


async def test_a_cancelled_task_leaves_nothing(order: int) -> None:
    """Cancellation while a tool waits stores nothing."""
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.sleep(60)
        return "never"

    talk = Talk([call("wait")], order=order)

    async def turn() -> None:
        await talk.say("one").tools(wait).acall().content()

    task = asyncio.create_task(turn())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await talk.repository.afind_by_conversation_id("c") == []


@pytest.mark.feature("memory-turns-once-lose-messages")
async def test_parallel_turns_are_both_stored(order: int) -> None:
    """Parallel turns are stored completely, in the order of their answers."""
    talk = Talk(lambda prompt: f"re {prompt.messages[-1].text}", order=order)
    turns = [talk.say(f"q{number}").acall().content() for number in range(20)]
    await asyncio.gather(*turns)

    stored = short(talk.stored)
    assert sorted(stored[::2]) == sorted(f"u:q{number}" for number in range(20))
    assert [line.replace("u:", "a:re ") for line in stored[::2]] == stored[1::2]


# --- turns that wait ------------------------------------------------------------------------


@tool
def pay(amount: int = 1) -> str:
    """Pay."""
    return f"paid {amount}"


def approving(*answers: Answer, **settings: Any) -> Talk:
    manager = ToolCallingManager(
        interceptors=[ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")]
    )
    talk = Talk(*answers, manager=manager, **settings)
    talk.client = talk.client.mutate().default_tools(pay).build()
    return talk


@pytest.mark.feature("memory-turn-waits-approval-remembered")
@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_a_turn_that_waits_is_remembered_when_it_ends(ask: Ask, order: int, decision: Any) -> None:
    """A suspended turn is stored when it has ended, after turns that ran in between."""
    talk = approving(
        "hello",
        [call("look")],
        [call("pay"), call("look", id="l2")],
        "meanwhile",
        "paid",
        "bye",
        order=order,
    )
    ask(talk.say("hi"))
    response = ask(talk.say("one")).response
    waiting: Any = response.turn.pending
    assert short(talk.stored) == ["u:hi", "a:hello"]
    ask(talk.say("between"))
    between = ["u:hi", "a:hello", "u:between", "a:meanwhile"]
    assert short(talk.stored) == between

    ask(talk.client.resume(waiting.to_json(), decision))
    result = "paid 1" if decision == "approve" else "The user did not allow this call."
    turn = [
        "u:one",
        "a:(call_look)",
        "t:(seen it)",
        "a:(call_pay,l2)",
        f"t:({result},seen it)",
        "a:paid",
    ]
    assert talk.shown[-1][-5:] == turn[:-1]
    assert short(talk.stored) == [*between, *turn]
    ask(talk.say("two"))
    assert talk.shown[-1] == ["s:Be brief.", *between, *turn, "u:two"]


@pytest.mark.feature("memory-turn-waits-approval-remembered")
def test_a_turn_that_waits_twice_is_remembered_once(ask: Ask, order: int) -> None:
    """A turn that is suspended and resumed several times is stored once."""
    talk = approving([call("pay", id="p1")], [call("pay", id="p2")], "paid", "paid", order=order)
    first: PendingTurn = ask(talk.say("one")).waiting
    second = ask(talk.client.resume(first, "approve")).waiting
    assert talk.stored == []
    for _ in range(2):
        ask(talk.client.resume(second.to_json(), "approve"))

    turn = ["u:one", "a:(p1)", "t:(paid 1)", "a:(p2)", "t:(paid 1)", "a:paid"]
    assert short(talk.stored) == turn


def test_a_turn_that_waits_keeps_its_key(ask: Ask, order: int) -> None:
    """A suspended job that is delivered twice is stored once."""
    talk = approving([call("pay", id="p1")], [call("pay", id="p2")], "paid", "paid", order=order)
    delivered = [talk.say("one").advisor_params({TURN_KEY: "job 1"}) for _ in range(2)]
    waiting = [ask(each).waiting for each in delivered]
    for turn in waiting:
        ask(talk.client.resume(turn.to_json(), "approve"))

    assert short(talk.stored) == ["u:one", "a:(p1)", "t:(paid 1)", "a:paid"]


@pytest.mark.parametrize("tool_messages", [True, False])
def test_a_retry_of_a_resumed_turn(ask: Ask, order: int, tool_messages: bool) -> None:
    """The user's question is stored, not the one that advisors rewrote, and each call once."""
    answers: list[Answer] = [[call("look")], [call("pay")], "bad", "good"]
    talk = approving(*answers, order=order, tool_messages=tool_messages)
    advisors = (ReReadingAdvisor(), around(GuardrailResult.retry("bad")))
    client = talk.client.mutate().default_advisors(*advisors).build()
    waiting = ask(client.prompt("one").conversation("c")).answer.pending_turn()
    ask(client.resume(waiting.to_json(), "approve"))

    calls = [*TURN[1:3], "a:(call_pay)", "t:(paid 1)"] * tool_messages
    assert short(talk.stored) == ["u:one", *calls, "a:good"]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("looked", [True, False])
def test_refused_answers_before_a_wait(ask: Ask, order: int, looked: bool, stored: bool) -> None:
    """A suspended turn stores the same as any other turn."""
    answers: list[Answer] = [[call("look")]] * looked
    talk = approving("hello", *answers, "rude", [call("pay")], "rude", "paid", order=order)

    def polite(answer: ChatResponse) -> GuardrailResult | None:
        return GuardrailResult.reprompt("rude", "Mind!") if answer.text == "rude" else None

    client = talk.client.mutate().default_advisors(OutputGuardrailAdvisor(polite)).build()
    ask(client.prompt("hi").conversation("c"))
    waiting = ask(client.prompt("one").conversation("c")).waiting
    done = ask(client.resume(waiting.to_json() if stored else waiting, "approve"))

    executed = [each.tool_call.name for each in done.executions]
    assert executed == [*["look"] * looked, "pay"]
    hi, look = ["u:hi", "a:hello"], ["a:(call_look)", "t:(seen it)"] * looked
    refused, pay = ["a:rude", "u:Mind!"], ["a:(call_pay)", "t:(paid 1)"]
    shown = ["s:Be brief.", *hi, "u:one", *look, *refused, *pay, *refused]
    assert talk.shown[-1] == shown
    assert short(talk.stored) == [*hi, "u:one", *look, *pay, "a:paid"]


@pytest.mark.parametrize("there", [INSIDE, MEMORY_ORDER], ids=["to the inside", "to the outside"])
def test_a_turn_may_be_resumed_with_another_memory_order(ask: Ask, there: int) -> None:
    """A turn may be resumed with memory at another order; no history is sent or stored twice."""
    here = MEMORY_ORDER if there == INSIDE else INSIDE
    talk = approving("hello", [call("pay")], [call("look")], "paid", order=here)
    ask(talk.say("hi"))
    waiting = ask(talk.say("one")).waiting
    advisor = MessageChatMemoryAdvisor(talk.memory, order=there)
    client = (
        ChatClient.builder(talk.model).default_tools(look, pay).default_advisors(advisor).build()
    )
    ask(client.resume(waiting, "approve"))

    turn = ["u:one", "a:(call_pay)", "t:(paid 1)", "a:(call_look)", "t:(seen it)"]
    assert talk.shown[-1][-5:] == turn
    assert talk.shown[-1].count("u:hi") == (1 if there == INSIDE else 0)
    assert short(talk.stored) == ["u:hi", "a:hello", *turn, "a:paid"]


def test_a_turn_that_waited_before_there_was_memory(ask: Ask, order: int) -> None:
    """Without a recorded start, the last turn of the messages is stored."""
    talk = approving([call("pay")], "paid", order=order)
    pending = PendingTurn(
        (SystemMessage("x"), *greeting(), UserMessage("one")),
        AssistantMessage([call("pay")]),
        (),
        (call("pay"),),
        conversation_id="c",
    )
    talk.model._answers.pop(0)
    ask(talk.client.resume(pending, "approve"))

    assert short(talk.stored) == ["u:one", "a:(call_pay)", "t:(paid 1)", "a:paid"]


@pytest.mark.parametrize(
    "answers",
    [
        [AssistantMessage(["So: ", "a"], metadata={"id": "m"})],
        [AssistantMessage([Reasoning("hm"), "a"])],
        [[call("look")], "a"],
        [["Let me look. ", call("look")], ["Hm. ", call("look")], "a"],
        ["\n a\n"],
    ],
    ids=["metadata", "reasoning", "tools", "words before tools, in streams", "white space"],
)
def test_resent_messages_are_found_by_id(ask: Ask, order: int, answers: list[Any]) -> None:
    """A chat frontend sends texts without tool calls, and other ids for answers, or none."""
    talk = Talk(*answers * 3, order=order)
    told: list[Message] = []
    for number in range(3):
        told.append(UserMessage(f"q{number}", id=f"id-{number}"))
        answer = ask(talk.client.prompt().messages(*told).conversation("c"))
        told.append(AssistantMessage(answer.text.strip(), id="own" if number else None))

    asked = [m.text for m in talk.repository.find_by_conversation_id("c") if m.role == "user"]
    assert asked == ["q0", "q1", "q2"]
    assert talk.shown[-1].count("u:q0") == 1


def test_resent_messages_without_ids_are_new(ask: Ask, order: int) -> None:
    """The same text may have been sent twice."""
    talk = Talk("hello", "fine", order=order)
    ask(talk.say("hi"))
    again = [UserMessage("hi"), AssistantMessage("hello"), UserMessage("how are you?")]
    ask(talk.client.prompt(again).conversation("c"))

    said = ["u:hi", "a:hello"] * 2
    assert talk.shown[-1] == ["s:Be brief.", *said, "u:how are you?"]
    assert short(talk.stored) == [*said, "u:how are you?", "a:fine"]


def test_a_regenerated_answer(ask: Ask, order: int) -> None:
    """A frontend that regenerates the last answer sends the question again with its id."""
    talk = Talk("zero", "first", "again", order=order)
    ask(talk.client.prompt([UserMessage("hi", id="0")]).conversation("c"))
    for _ in range(2):
        ask(talk.client.prompt([UserMessage("one", id="1")]).conversation("c"))

    assert talk.shown[-1] == ["s:Be brief.", "u:hi", "a:zero", "u:one"]
    assert short(talk.stored) == ["u:hi", "a:zero", "u:one", "a:first"]


def test_stored_messages_have_the_response_ids(ask: Ask, order: int) -> None:
    """An application may keep what `messages()` returns, and send it again."""
    talk = Talk([call("look")], "first", order=order)
    messages = ask(talk.client.prompt([UserMessage("one", id="1")]).conversation("c")).answer

    ids = [message.id for message in messages.messages()]
    assert ids == [message.id for message in talk.stored]
    assert ids[0] == "1"
    assert len(set(ids)) == 4


@pytest.mark.parametrize("key", [17, UUID(int=7)])
def test_a_turns_key_may_be_a_number_or_a_uuid(ask: Ask, order: int, key: Any) -> None:
    """Keys are converted to text."""
    talk = Talk("hello", "hello again", order=order)
    talk.memory.repository = SqlChatMemoryRepository("sqlite://")
    for _ in range(2):
        ask(talk.say("hi").advisor_params({TURN_KEY: key}))

    assert short(talk.memory.get("c")) == ["u:hi", "a:hello"]
    talk.memory.repository.close()


@pytest.mark.parametrize("mode", ["call", "stream"])
def test_a_late_turn_is_stored_by_all_or_none(mode: Mode, clock: Clock) -> None:
    """Once one memory has stored the turn, the deadline does not keep the others from it."""

    class Late(InMemoryChatMemoryRepository):
        async def append(self, *given: Any, **more: Any) -> bool:
            new = await super().append(*given, **more)
            runtime = given[2]
            clock.advance(runtime.remaining() + 1)
            return new

    inner, outer = MessageWindowChatMemory(Late()), MessageWindowChatMemory()
    advisors = [
        MessageChatMemoryAdvisor(outer),
        MessageChatMemoryAdvisor(inner, order=MEMORY_ORDER + 1),
    ]
    client = ChatClient.builder(ScriptedModel("hello")).default_advisors(*advisors).build()
    with suppress(DeadlineExceededError):
        Ask(mode)(client.prompt("hi").conversation("c").deadline(50))

    assert short(inner.get("c")) == short(outer.get("c")) == ["u:hi", "a:hello"]


@pytest.mark.parametrize("kind", [MessageChatMemoryAdvisor, PromptChatMemoryAdvisor])
def test_memory_has_the_order_that_it_is_given(kind: Any) -> None:
    """By default it has its documented place among the advisors."""
    memory = MessageWindowChatMemory()

    assert (kind(memory).order, kind(memory, order=7).order) == (MEMORY_ORDER, 7)


def test_no_memory_access_after_the_deadline(clock: Clock) -> None:
    """After the deadline, the memory is neither read nor written."""

    def late(prompt: Prompt) -> Answer:
        clock.advance(60)
        return "too late"

    talk = Talk(late, order=MEMORY_ORDER)
    for seconds in (1e-9, 50):
        with pytest.raises(DeadlineExceededError):
            talk.say("hi").deadline(seconds).call().content()

    assert len(talk.model.prompts) == 1
    assert talk.stored == []


# --- where the loop is not the library's ----------------------------------------------------


@pytest.mark.feature("memory-inside-loop-stored-message")
def test_inside_a_loop_that_sends_the_history_itself(ask: Ask) -> None:
    """No history is sent twice."""
    talk = Talk("hello", [call("look")], "first", order=INSIDE)
    loop = ToolCallingAdvisor(conversation_history=True)
    client = talk.client.mutate().default_advisors(loop).build()
    ask(client.prompt("hi").conversation("c"))
    ask(client.prompt("one").conversation("c"))

    assert talk.shown[-1] == ["s:Be brief.", "u:hi", "a:hello", *TURN[:3]]
    assert short(talk.stored) == ["u:hi", "a:hello", *TURN]


def test_what_a_loop_adds_to_a_round_displaces_nothing(ask: Ask, order: int) -> None:
    """A message that a hook adds to a round is sent with the turn, and not stored."""

    class Reminding(ToolCallingAdvisor):
        async def next_messages(self, *of_round: Any, **_: Any) -> tuple[Message, ...]:
            return (*await super().next_messages(*of_round), UserMessage("hint"))

    talk = Talk([call("look")], [call("look")], "first", order=order)
    client = talk.client.mutate().default_advisors(Reminding()).build()
    ask(client.prompt("one").conversation("c"))

    assert talk.shown[1] == ["s:Be brief.", *TURN[:3], "u:hint"]
    assert talk.shown[2] == ["s:Be brief.", *TURN[:3], *TURN[1:3], "u:hint"]
    assert short(talk.stored) == [*TURN[:3], *TURN[1:]]


def test_a_hook_changes_only_what_is_sent(ask: Ask, order: int) -> None:
    """If it shortens the results that are sent, the memory stores them in full."""

    class Shortening(ToolCallingAdvisor):
        async def next_messages(self, *of_round: Any, **_: Any) -> tuple[Message, ...]:
            return tuple(map(shortened, await super().next_messages(*of_round)))

    def shortened(message: Message) -> Message:
        if isinstance(message, ToolResponseMessage):
            return message.mutate(responses=[replace(r, data="…") for r in message.responses])
        return message

    talk = Talk("hello", [call("look")], [call("look")], "first", order=order)
    client = talk.client.mutate().default_advisors(Shortening()).build()
    for text in ("hi", "one"):
        ask(client.prompt(text).conversation("c"))

    before, calls = ["s:Be brief.", "u:hi", "a:hello", TURN[0]], TURN[1]
    assert talk.shown[2] == [*before, calls, "t:(…)"]
    assert [*talk.shown[3][:5], talk.shown[3][-1]] == [*before, calls, "t:(…)"]
    assert short(talk.stored) == ["u:hi", "a:hello", *TURN[:3], *TURN[1:]]


def test_outside_a_loop_without_history() -> None:
    """The combination is refused, because calls would be missing; inside, memory sends them."""
    loop = ToolCallingAdvisor(conversation_history=False)
    memory = MessageWindowChatMemory()
    outside, inside = (MessageChatMemoryAdvisor(memory, order=n) for n in (MEMORY_ORDER, INSIDE))

    with pytest.raises(UsageError, match="MessageChatMemoryAdvisor is outside") as caught:
        ChatClient.builder(ScriptedModel()).default_advisors(loop, outside).build()
    assert f"above {TOOL_CALLING_ORDER}" in str(caught.value)
    ChatClient.builder(ScriptedModel()).default_advisors(loop, inside).build()


@pytest.mark.parametrize("history", [True, False])
async def test_inside_a_chain_made_by_hand(history: bool) -> None:
    """Without its outer half, the advisor stores the turn when it receives the answer."""
    talk = Talk("hello", [call("look")], "first", order=INSIDE)
    advisors: list[Advisor] = [
        ToolCallingAdvisor(conversation_history=history),
        MessageChatMemoryAdvisor(talk.memory, order=INSIDE),
    ]
    chain = AdvisorChain(advisors, talk.model)
    options = talk.model.options.mutate(tool_callbacks=tool_callbacks(look))
    for text in ("hi", "one"):
        prompt = Prompt([SystemMessage("Be brief."), UserMessage(text)], options)
        await chain(ChatClientRequest(prompt, {CONVERSATION_ID: "c"}))

    assert talk.shown[-1] == ["s:Be brief.", "u:hi", "a:hello", *TURN[:3]]
    assert short(talk.stored) == ["u:hi", "a:hello", *TURN]


def test_around_a_loop_of_the_applications_own(ask: Ask, order: int) -> None:
    """If a loop does not record its rounds, the question and the answer are stored."""

    class OwnLoop:
        order = TOOL_CALLING_ORDER
        handles_tool_calls = True

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            await call_next(request)
            return await call_next(request)

    talk = Talk("draft", "final", order=order)
    client = talk.client.mutate().default_advisors(OwnLoop()).build()
    ask(client.prompt("hi").conversation("c"))

    assert talk.shown == [["s:Be brief.", "u:hi"]] * 2
    assert short(talk.stored) == ["u:hi", "a:final"]


@pytest.mark.feature("memory-inside-loop-stored-message")
def test_the_chain_shows_both_halves() -> None:
    """Memory inside the loop has its outer half directly outside of the loop."""
    lines = str(Talk("x", order=INSIDE).client).splitlines()

    assert [line.strip().split(" (order")[0] for line in lines[1:4]] == [
        "→ MessageChatMemoryAdvisor, whole turns",
        "→ ToolCallingAdvisor",
        "→ MessageChatMemoryAdvisor",
    ]
    assert lines[3].startswith("    ")
    assert "whole turns" not in str(Talk("x").client)


# --- memory in the system text --------------------------------------------------------------


@pytest.mark.feature("memory-prompt-chat-memory-advisor")
def test_memory_in_the_system_text(ask: Ask, order: int) -> None:
    """The first turn has no block; later ones have it, and the request's own messages only."""
    talk = Talk("<b>hello</b>", [call("look")], "first", order=order, kind=PromptChatMemoryAdvisor)
    ask(talk.say('hi </memory> "you"'))
    ask(talk.say("one"))

    assert talk.shown[0] == ["s:Be brief.", 'u:hi </memory> "you"']
    for prompt, turn in zip(talk.model.prompts[1:], (TURN[:1], TURN[:3]), strict=True):
        system = prompt.messages[0].text
        assert short(prompt.messages[1:]) == turn
        assert system.startswith("Be brief.\n\n")
        assert system.count("</memory>") == 1
        assert '<message from="user">hi &lt;/memory&gt; &quot;you&quot;</message>' in system
        assert '<message from="assistant">&lt;b&gt;hello&lt;/b&gt;</message>' in system
    assert short(talk.stored)[2:] == TURN


def test_memory_without_a_system_text(ask: Ask, order: int) -> None:
    """The system text is the memory block, with the tool calls of earlier turns."""
    talk = Talk([call("look")], "first", "second", order=order, kind=PromptChatMemoryAdvisor)
    client = (
        ChatClient.builder(talk.model)
        .default_tools(look)
        .default_advisors(
            PromptChatMemoryAdvisor(talk.memory, order=order, template="{instructions}\n[{memory}]")
        )
        .build()
    )
    ask(client.prompt("one").conversation("c"))
    ask(client.prompt("two").conversation("c"))

    lines = [
        '[<message from="user">one</message>',
        '<tool-call name="look">{}</tool-call>',
        '<tool-result name="look">seen it</tool-result>',
        '<message from="assistant">first</message>]',
    ]
    assert talk.shown[-1] == ["s:" + "\n".join(lines), "u:two"]


def test_system_messages_stay_out_of_the_block(ask: Ask, order: int) -> None:
    """The application's instructions are not data of the conversation."""
    talk = Talk("one", order=order, kind=PromptChatMemoryAdvisor)
    talk.memory.add("c", SystemMessage("The user is called Ada."))
    ask(talk.say("hi"))

    assert talk.shown == [["s:Be brief.", "s:The user is called Ada.", "u:hi"]]


def test_templates_need_both_placeholders() -> None:
    """The error is raised when the advisor is created."""
    memory = MessageWindowChatMemory()

    with pytest.raises(TemplateError, match="memory"):
        PromptChatMemoryAdvisor(memory, template="{instructions}")
    with pytest.raises(TemplateError, match="instructions"):
        PromptChatMemoryAdvisor(memory, template="Earlier: {memory}")
    with pytest.raises(TemplateError, match="other"):
        PromptChatMemoryAdvisor(memory, template="{instructions} {memory} {other}")


@pytest.mark.parametrize("order", [MEMORY_ORDER, TOOL_CALLING_ORDER + 1])
@pytest.mark.parametrize("way", ["twice", "one memory", "one repository"])
def test_a_memory_is_there_once(way: str, order: int) -> None:
    """Two advisors with one memory are refused, because both would store and send each turn."""
    memory = MessageWindowChatMemory()
    first = MessageChatMemoryAdvisor(memory, order=order)
    others: dict[str, Advisor] = {
        "twice": first,
        "one memory": PromptChatMemoryAdvisor(memory),
        "one repository": MessageChatMemoryAdvisor(MessageWindowChatMemory(memory.repository)),
    }
    builder = ChatClient.builder(ScriptedModel()).default_advisors(first)

    with pytest.raises(UsageError, match="share one memory"):
        builder.default_advisors(others[way]).build()
    with pytest.raises(UsageError, match="share one memory"):
        builder.build().prompt("x").conversation("c").advisors(others[way]).call().content()
