"""Recording the responses of a model, and replaying them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient, ChatModel, tool
from chatclient.chat.events import TextDelta
from chatclient.chat.messages import (
    AssistantMessage,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
    UserMessage,
)
from chatclient.chat.model import OutputMode
from chatclient.chat.options import ChatOptions
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    Generation,
    RateLimit,
    Usage,
)
from chatclient.chat.serialization import response_from_dict, response_to_dict
from chatclient.errors import ProviderError, UsageError
from chatclient.testing import (
    Ask,
    Recording,
    RecordingAdvisor,
    RecordingModel,
    ReplayError,
    ReplayingModel,
    ScriptedModel,
    call,
)
from chatclient.testing.recording import Exchange

pytest_plugins = ["pytester"]


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


def scripted() -> ScriptedModel:
    options = ChatOptions(model="m-1", temperature=0.5)
    return ScriptedModel(call("get_weather", '{"city": "Rome"}'), "It is fine.", options=options)


def client_of(model: ChatModel, *advisors: Any) -> ChatClient:
    builder = ChatClient.builder(model).default_tools(get_weather).default_advisors(advisors)
    return builder.default_options(max_tokens=50).build()


def texts(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def by_advisor(recording: Recording) -> ChatClient:
    return client_of(scripted(), RecordingAdvisor(recording))


def by_model(recording: Recording) -> ChatClient:
    return client_of(RecordingModel(scripted(), recording))


@pytest.mark.parametrize("record", [by_advisor, by_model])
def test_a_turn_is_recorded_and_replayed(
    ask: Ask, tmp_path: Path, record: Callable[[Recording], ChatClient]
) -> None:
    """The replayed answer, tool calls, usage and pieces equal the recorded ones."""
    recording = Recording()
    first = ask(record(recording).prompt("Weather?"))
    recording.save(tmp_path / "new" / "turn.json")

    model = ReplayingModel(tmp_path / "new" / "turn.json")
    again = ask(client_of(model).prompt("Weather?"))

    assert again.text == first.text == "It is fine."
    assert again.response.chat_response.usage == first.response.chat_response.usage
    assert again.executions == first.executions
    assert texts(again.events) == texts(first.events)
    assert model.unused == ()


def test_a_call_that_has_no_id_is_replayed() -> None:
    """A generated id is the same in all recorded exchanges."""
    pieces = [ToolCallChunk(0, "", "get_weather", '{"city":'), ToolCallChunk(0, "", "", '"Rome"}')]
    more = Generation(AssistantMessage("another"), index=1)
    answer = ChatResponse((Generation(AssistantMessage(pieces), "tool_call"), more))
    recording = Recording()
    recorded = RecordingModel(ScriptedModel(answer, "It is fine."), recording)

    assert "".join(client_of(recorded).prompt("a").stream()) == "It is fine."
    assert "".join(client_of(ReplayingModel(recording)).prompt("a").stream()) == "It is fine."
    first = response_from_dict(recording.exchanges[0].response)
    assert [each.output.text for each in first.generations] == ["", "another"]


@pytest.mark.parametrize("inside", [RecordingModel, RecordingAdvisor])
def test_a_secret_that_the_stream_cut_is_redacted(tmp_path: Path, inside: Any) -> None:
    """Pieces are split again, so that they cannot be joined to the secret."""
    real = ScriptedModel("Your key is sk-4711, keep it.", chunks=4)
    recording = Recording(redact=lambda text: text.replace("sk-4711", "<key>"))
    if inside is RecordingModel:
        client = ChatClient.create(RecordingModel(real, recording))
    else:
        client = ChatClient.builder(real).default_advisors(RecordingAdvisor(recording)).build()
    list(client.prompt("key?").stream())
    recording.save(tmp_path / "turn.json")

    replayed = list(
        ChatClient.create(ReplayingModel(tmp_path / "turn.json")).prompt("key?").stream()
    )
    assert "".join(replayed) == "Your key is <key>, keep it."
    assert len(replayed) > 1
    assert "sk-4711" not in "".join(recording.exchanges[0].pieces)


def test_another_request_is_a_loud_difference(ask: Ask) -> None:
    """The error shows the lines that differ from the recorded request."""
    recording = Recording()
    ask(by_model(recording).prompt("Weather?"))
    client = client_of(ReplayingModel(recording))

    with pytest.raises(ReplayError) as caught:
        ask(client.prompt("Weather tomorrow?"))

    lines = str(caught.value).splitlines()
    assert lines[0] == "this was not recorded; the next recorded request differs:"
    assert any(line.startswith("-") and '"Weather?"' in line for line in lines)
    assert any(line.startswith("+") and '"Weather tomorrow?"' in line for line in lines)


def test_options_that_are_set_have_to_be_the_same() -> None:
    """Options of the request are compared, and defaults of the recorded model are not."""
    recording = Recording()
    by_model(recording).prompt("Weather?").call().content()
    client = client_of(ReplayingModel(recording))

    with pytest.raises(ReplayError, match=r'\+  "max_tokens": 60'):
        client.prompt("Weather?").options(max_tokens=60).call().content()


def test_a_tool_that_changed_is_a_difference() -> None:
    """The definitions of tools are part of the request."""

    @tool(name="get_weather")
    def changed(town: str) -> str:
        """Get the weather in a town."""
        return town

    recording = Recording()
    by_model(recording).prompt("Weather?").call().content()

    with pytest.raises(ReplayError, match=r'\+\s+"description": "Get the weather in a town\."'):
        client_of(ReplayingModel(recording)).prompt("Weather?").tools(changed).call().content()


def test_nothing_is_replayed_twice() -> None:
    """Each exchange is replayed once; another request is an error that shows it."""
    recording = Recording()
    client = ChatClient.create(RecordingModel(ScriptedModel("One."), recording))
    client.prompt("Say something").call().content()

    client = ChatClient.create(ReplayingModel(recording))
    assert client.prompt("Say something").call().content() == "One."
    with pytest.raises(ReplayError, match="no exchange left"):
        client.prompt("Say something").call().content()


def test_the_order_of_requests_does_not_matter() -> None:
    """Concurrent requests find their own exchange."""
    recording = Recording()
    client = ChatClient.create(RecordingModel(ScriptedModel("One.", "Two."), recording))
    for text in ("1", "2"):
        client.prompt(text).call().content()

    client = ChatClient.create(ReplayingModel(recording))
    assert [client.prompt(text).call().content() for text in ("2", "1")] == ["Two.", "One."]


def test_secrets_are_redacted_before_they_are_kept(ask: Ask, tmp_path: Path) -> None:
    """Requests and responses are redacted before they are stored or compared."""

    def redact(text: str) -> str:
        return text.replace("4711", "<code>")

    recording = Recording(redact)
    model = RecordingModel(ScriptedModel("Not 4711!", chunks=20), recording)
    ask(ChatClient.create(model).prompt("My code is 4711."))
    recording.save(tmp_path / "r.json")

    assert "4711" not in (tmp_path / "r.json").read_text()
    replaying = ReplayingModel(Recording.load(tmp_path / "r.json", redact=redact))
    assert ask(ChatClient.create(replaying).prompt("My code is 4711.")).text == "Not <code>!"


def test_secrets_in_json_are_redacted_unescaped(ask: Ask, tmp_path: Path) -> None:
    r"""Escapes are decoded first, because the letter of `\n` would join two words."""

    def redact(text: str) -> str:
        return re.sub(r"\b4711\b", "<code>", text)

    recording = Recording(redact)
    answers = (call("get_weather", r'{"city": "at\n4711"}'), r'{"code": "It is\n4711."}')
    model = RecordingModel(ScriptedModel(*answers, chunks=2), recording)
    ask(ChatClient.builder(model).default_tools(get_weather).build().prompt("My \\ code:\n4711"))
    recording.save(tmp_path / "r.json")

    assert "4711" not in (tmp_path / "r.json").read_text()
    replaying = ReplayingModel(Recording.load(tmp_path / "r.json", redact=redact))
    client = ChatClient.builder(replaying).default_tools(get_weather).build()
    said = ask(client.prompt("My \\ code:\n4711")).text
    assert json.loads(said) == {"code": "It is\n<code>."}


def test_a_failure_is_not_recorded(ask: Ask) -> None:
    """Only responses are recorded, such as that of a retry."""
    recording = Recording()
    overloaded = ProviderError("overloaded", provider="p")
    model = ScriptedModel(overloaded, overloaded)
    for client in (
        ChatClient.create(RecordingModel(model, recording)),
        ChatClient.builder(model).default_advisors(RecordingAdvisor(recording)).build(),
    ):
        with pytest.raises(ProviderError):
            ask(client.prompt("Hi"))

    assert recording.exchanges == []


async def test_closing_closes_the_real_model() -> None:
    """A recording model closes the wrapped one and has its options."""
    closed: list[str] = []

    class Real(ScriptedModel):
        def close(self) -> None:
            closed.append("blocking")

        async def aclose(self) -> None:
            closed.append("on the loop")

    model = RecordingModel(Real(options=ChatOptions(model="m")), Recording())
    model.close()
    await model.aclose()

    assert closed == ["blocking", "on the loop"]
    assert model.options.model == "m"


@pytest.mark.parametrize("text", ["{}", "[]", '{"exchanges": [{}]}', "nonsense"])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    """The error names the file."""
    path = tmp_path / "r.json"
    path.write_text(text)

    with pytest.raises(UsageError, match=r"r\.json is not a recording"):
        Recording.load(path)


def test_responses_make_the_round_trip() -> None:
    """Every field is kept; default values are not stored."""
    response = ChatResponse(
        (
            Generation(AssistantMessage(["Hi", ToolCall("1", "x", "{}")]), "tool_call", "tools"),
            Generation(AssistantMessage("Ho"), "stop", index=1, metadata={"logprobs": [1, 2]}),
        ),
        ChatResponseMetadata(
            "id", "model", Usage(1, 2, 3, native={"a": 1}), RateLimit(5), "req", {"tier": "x"}
        ),
    )

    assert response_from_dict(json.loads(json.dumps(plain(response)))) == response
    assert response_to_dict(ChatResponse()) == {"generations": [], "metadata": {}}


def plain(response: ChatResponse) -> Any:
    from chatclient._internal.json import dumps, loads

    return loads(dumps(response_to_dict(response)))


@pytest.mark.parametrize(
    "data",
    [{}, {"generations": [{}], "metadata": {}}, {"generations": [], "metadata": {"x": 1}}],
)
def test_what_is_no_response_is_refused(data: Any) -> None:
    """Invalid data raise a `UsageError`."""
    with pytest.raises(UsageError, match="not a stored response"):
        response_from_dict(data)


def test_a_generation_has_an_assistant_message() -> None:
    """A user message in a stored generation is refused."""
    data = {"generations": [{"output": {"role": "user", "content": ["Hi"]}}], "metadata": {}}
    with pytest.raises(UsageError, match="role 'user'"):
        response_from_dict(data)


# --- the plugin -----------------------------------------------------------------------------

_TEST = """
from chatclient import ChatClient
from chatclient.testing import ScriptedModel

def test_it(recorded_model):
    client = ChatClient.create(recorded_model(lambda: ScriptedModel("Yes.", "And no.")))
    assert client.prompt("Well?").call().content() == {answer!r}
    {more}
"""


def run(pytester: pytest.Pytester, *options: str, answer: str = "Yes.", more: str = "") -> Any:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(test_one=_TEST.format(answer=answer, more=more))
    return pytester.runpytest_inprocess(
        "-p", "chatclient.testing.plugin", "-p", "no:cacheprovider", *options
    )


def test_a_test_records_once_and_replays(pytester: pytest.Pytester) -> None:
    """The file is stored next to the test; the real model is not called again."""
    run(pytester, "--chatclient-record=once").assert_outcomes(passed=1)
    recording = pytester.path / "recordings" / "test_one" / "test_it.json"
    recording.write_text(recording.read_text().replace("Yes.", "Maybe."))

    run(pytester, answer="Maybe.").assert_outcomes(passed=1)
    run(pytester, "--chatclient-record=once", answer="Maybe.").assert_outcomes(passed=1)
    run(pytester, "--chatclient-record=all").assert_outcomes(passed=1)
    run(pytester).assert_outcomes(passed=1)


def test_without_a_recording_a_test_fails(pytester: pytest.Pytester) -> None:
    """The error has the option that records."""
    result = run(pytester)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*run pytest with --chatclient-record=once*"])


def test_a_failing_test_records_nothing(pytester: pytest.Pytester) -> None:
    """Only passed tests store a recording."""
    run(pytester, "--chatclient-record=once", answer="No.").assert_outcomes(failed=1)

    assert not (pytester.path / "recordings").exists()


@pytest.mark.parametrize("leave", ["skip", "xfail"])
def test_an_unfinished_test_records_nothing(pytester: pytest.Pytester, leave: str) -> None:
    """A test that is skipped, or fails as expected, need not repeat all recorded requests."""
    outcomes = {"skip": {"skipped": 1}, "xfail": {"xfailed": 1}}[leave]
    early = f"import pytest; pytest.{leave}()"
    run(pytester, "--chatclient-record=once", more=early).assert_outcomes(**outcomes)
    assert not (pytester.path / "recordings").exists()

    more = 'client.prompt("Sure?").call().content()'
    run(pytester, "--chatclient-record=once", more=more).assert_outcomes(passed=1)
    run(pytester, more=f"{early}; {more}").assert_outcomes(**outcomes)


def test_exchanges_that_are_left_over_fail(pytester: pytest.Pytester) -> None:
    """A test that makes fewer requests than recorded fails."""
    more = 'client.prompt("Sure?").call().content()'
    run(pytester, "--chatclient-record=once", more=more).assert_outcomes(passed=1)

    result = run(pytester)

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*1 recorded exchanges were not used*"])


def test_one_model_for_each_test(pytester: pytest.Pytester) -> None:
    """A second recorded model in one test is refused."""
    more = "recorded_model(ScriptedModel)"
    result = run(pytester, "--chatclient-record=once", more=more)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*can be called once per test*"])


_CLASSES = """
from chatclient import ChatClient
from chatclient.testing import ScriptedModel

class TestParis:
    def test_weather(self, recorded_model):
        client = ChatClient.create(recorded_model(lambda: ScriptedModel("rain")))
        assert client.prompt("Paris?").call().content() == "rain"

class TestRome:
    def test_weather(self, recorded_model):
        client = ChatClient.create(recorded_model(lambda: ScriptedModel("sun")))
        assert client.prompt("Rome?").call().content() == "sun"
"""


def test_classes_have_separate_recordings(
    pytester: pytest.Pytester,
) -> None:
    """The class is in the name of the file."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(test_two=_CLASSES)
    options = ("-p", "chatclient.testing.plugin", "-p", "no:cacheprovider")
    record = "--chatclient-record=once"
    pytester.runpytest_inprocess(*options, record).assert_outcomes(passed=2)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=2)

    folder = pytester.path / "recordings" / "test_two"
    names = ["TestParis.test_weather.json", "TestRome.test_weather.json"]
    assert sorted(path.name for path in folder.iterdir()) == names


_MANY = """
import pytest
from chatclient import ChatClient
from chatclient.testing import ScriptedModel

@pytest.mark.parametrize("question", ["a+b", "a*b", "plain", 200 * "long", 200 * "long" + "er"])
def test_it(recorded_model, question):
    client = ChatClient.create(recorded_model(lambda: ScriptedModel(question[::-1])))
    assert client.prompt(question).call().content() == question[::-1]
"""


def test_parameters_have_separate_recordings(pytester: pytest.Pytester) -> None:
    """The characters of a parameter are encoded in the file name."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(test_three=_MANY)
    options = ("-p", "chatclient.testing.plugin", "-p", "no:cacheprovider")
    record = "--chatclient-record=once"
    pytester.runpytest_inprocess(*options, record).assert_outcomes(passed=5)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=5)

    names = [path.name for path in (pytester.path / "recordings" / "test_three").iterdir()]
    assert len(names) == 5
    assert "test_it_plain_.json" in names


@pytest.mark.parametrize("chunks", [1, 3])
def test_the_parts_of_an_answer_keep_their_order(ask: Ask, chunks: int) -> None:
    """Parts may precede the text or be between texts, also in a stream."""
    rome = call("get_weather", '{"city": "Rome"}')
    step = AssistantMessage(
        [
            *(Reasoning("hm"), "Let me", ProviderPart("x", {"a": 1}), " look "),
            *(ProviderPart("x", {"b": 2}, "it up"), " for you.", rome),
        ]
    )
    recording = Recording()
    real = ScriptedModel(step, "Fine.", chunks=chunks)
    first = ask(client_of(RecordingModel(real, recording)).prompt("Weather?"))
    again = ask(client_of(ReplayingModel(recording)).prompt("Weather?"))

    assert again.executions == first.executions
    assert again.text == first.text
    assert texts(again.events) == texts(first.events)


def test_pieces_that_are_not_the_text_are_of_no_account() -> None:
    """If an edited response differs from its pieces, the response is streamed."""
    recording = Recording()
    list(client_of(RecordingModel(ScriptedModel("Fine."), recording)).prompt("a").stream())
    [exchange] = recording.exchanges
    recording.exchanges = [replace(exchange, pieces=("Bad",))]

    assert list(client_of(ReplayingModel(recording)).prompt("a").stream()) == ["Fine."]


class InWords(ScriptedModel):
    """A model without native schemas."""

    def output_mode(self, options: ChatOptions) -> OutputMode:
        return "instructions"


def test_a_replay_is_held_to_a_schema_as_the_model_was(tmp_path: Path) -> None:
    """The output mode is recorded, so that the same request is sent."""
    recording = Recording()
    client = ChatClient.create(RecordingModel(InWords("[1, 2]"), recording))
    assert client.prompt("numbers").call().entity(list[int], native=True) == [1, 2]
    recording.save(tmp_path / "r.json")

    client = ChatClient.create(ReplayingModel(tmp_path / "r.json"))
    assert client.prompt("numbers").call().entity(list[int], native=True) == [1, 2]


def test_replays_ignore_message_metadata(ask: Ask) -> None:
    """The time of a message, for example, may differ."""
    recording = Recording()
    for make in (
        lambda: RecordingModel(ScriptedModel("Fine."), recording),
        lambda: ReplayingModel(recording),
    ):
        model: ChatModel = make()
        message = UserMessage("Weather?", metadata={"at": str(id(model))})
        assert ask(client_of(model).prompt().messages(message)).text == "Fine."


def test_a_failed_recording_keeps_the_old_file(tmp_path: Path) -> None:
    """Lone surrogates can be written; values without a JSON form cannot."""
    recording = Recording()
    client_of(RecordingModel(ScriptedModel("half \ud83d"), recording)).prompt("a").call().content()
    recording.save(tmp_path / "r.json")
    assert Recording.load(tmp_path / "r.json").exchanges == recording.exchanges

    broken = Recording(exchanges=[Exchange({"odd": object()}, {})])
    with pytest.raises(TypeError):
        broken.save(tmp_path / "r.json")
    assert Recording.load(tmp_path / "r.json").exchanges == recording.exchanges


def test_metadata_without_json_form(tmp_path: Path) -> None:
    """It is left out of a recorded response, and named there."""
    answer, recording = AssistantMessage("Hi.", metadata={"connection": object()}), Recording()
    client_of(RecordingModel(ScriptedModel(answer), recording)).prompt("a").call().content()
    recording.save(tmp_path / "r.json")

    [exchange] = Recording.load(tmp_path / "r.json").exchanges
    assert "metadata.connection" in str(exchange.response["left_out"])
