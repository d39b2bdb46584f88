"""Code blocks of README and docs run, and the names in them exist."""

import base64
import builtins
import json
import re
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chatclient import Prompt, UserMessage, errors
from chatclient._internal.exports import PUBLIC_PACKAGES, exports_of
from chatclient.testing import Answer, ScriptedModel, call
from tests.support import features
from tests.support.environments import run_in_environment
from tests.support.otlp_collector import Collector, told
from tests.support.paths import ROOT

FEATURES = ROOT / "docs" / "features.md"  # a report, and not a page of the site
COLLECTED = ("Langfuse", "Logfire")  # sections of observability.md whose code needs a collector
PAGES = sorted([ROOT / "README.md", FEATURES, *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """Return the path of *page*, relative to `docs/` if inside."""
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


@cache
def text_of(page: Path) -> str:
    """Return the Markdown of *page*; that of features is a report."""
    return features.report() if page == FEATURES else page.read_text(encoding="utf-8")


def blocks(page: Path, section: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield code blocks with their first line numbers.

    Args:
        page: The page.
        section: One of `COLLECTED`; by default, all other sections.
    """
    text = text_of(page)
    for match in BLOCK.finditer(text):
        before = text[: match.start()]
        title = before.rpartition("\n## ")[2].partition("\n")[0]
        if (title if title in COLLECTED else None) == section:
            yield before.count("\n") + 1, match.group(1)


def example(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return a minimal value that satisfies *schema*."""
    if "$ref" in schema:
        return example(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {name: example(properties[name], root) for name in schema.get("required", ())}
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case "array":
            return [example(schema["items"], root)] if schema.get("items") else []
        case _:
            return "Rome"


def schema_in_prompt(prompt: Prompt) -> Any:
    """Return the schema described in the prompt of an entity request, if any."""
    texts = [m.text.partition("JSON Schema:\n")[2] for m in prompt.messages if m.role == "user"]
    return json.loads(texts[-1]) if texts and texts[-1] else None


def play(prompt: Prompt) -> Answer:
    """Call the first tool, then answer, as the pages expect of a model."""
    callbacks = prompt.options.tool_callbacks
    asks = isinstance(prompt.messages[-1], UserMessage)
    if callbacks and asks and prompt.options.tool_choice != "none":
        definition = callbacks[0].definition
        schema = definition.input_schema
        return call(definition.name, json.dumps(example(schema, schema)))
    schema = prompt.options.output_schema or schema_in_prompt(prompt)
    return "It is done." if schema is None else json.dumps(example(schema, schema))


def run_page(page: Path, monkeypatch: pytest.MonkeyPatch, section: str | None = None) -> None:
    for module in ("client.shared_parts", "settings.client_parts"):
        monkeypatch.setattr(f"chatclient.{module}.chat_model", lambda name: ScriptedModel(play))
    namespace: dict[str, Any] = {"__name__": page.stem}
    for line, code in blocks(page, section):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_of_a_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order with a scripted model."""
    run_page(page, monkeypatch)


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


def test_langfuse(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Langfuse gets the spans, with the keys and the content."""
    monkeypatch.setenv("LANGFUSE_BASE_URL", collector.address)
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk")

    run_page(ROOT / "docs" / "observability.md", monkeypatch, "Langfuse")

    basic = base64.b64encode(b"pk:sk").decode()
    assert collector.requests == [("/api/public/otel/v1/traces", f"Basic {basic}")]
    found = {span.name: told(span) for span in collector.spans}
    assert found["invoke_agent support"]["gen_ai.conversation.id"] == "c1"
    assert "Say hello." in found["chat ScriptedModel"]["gen_ai.input.messages"]


def test_logfire(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logfire gets spans and metrics, with the token and without content."""
    monkeypatch.setenv("LOGFIRE_BASE_URL", collector.address)
    monkeypatch.setenv("LOGFIRE_TOKEN", "token")

    run_page(ROOT / "docs" / "observability.md", monkeypatch, "Logfire")

    assert set(collector.requests) == {("/v1/traces", "token"), ("/v1/metrics", "token")}
    found = {span.name: told(span) for span in collector.spans}
    assert found["invoke_agent support"]["gen_ai.agent.name"] == "support"
    assert "gen_ai.input.messages" not in found["chat ScriptedModel"]
    assert "gen_ai.invoke_agent.duration" in collector.metrics


# In an environment of its own, because Logfire's plugins change pydantic and pytest.
LOGFIRE = """
import asyncio, logfire
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from chatclient import ChatClient
from chatclient.testing import ScriptedModel

spans = InMemorySpanExporter()
logfire.configure(
    send_to_logfire=False,
    console=False,
    additional_span_processors=[SimpleSpanProcessor(spans)],
)
client = ChatClient.builder(ScriptedModel("Hi.", "Hi.", "Hi.", "Hi.")).name("support").build()

async def ask():
    await client.prompt("Say hello.").acall().content()
    async for _ in client.prompt("Say hello.").astream().content():
        pass

client.prompt("Say hello.").call().content()
list(client.prompt("Say hello.").stream().content())
asyncio.run(ask())
for span in spans.get_finished_spans():
    if span.attributes["logfire.span_type"] != "pending_span":
        print(span.name)
"""


@pytest.mark.process("environment of its own")
def test_logfire_configured() -> None:
    """After `logfire.configure()`, requests are traced without further settings."""
    ran = run_in_environment("-c", LOGFIRE, requirements=("logfire>=4",))

    assert ran.stderr == ""
    names = ["invoke_agent support", "advisor ToolCallingAdvisor", "chat ScriptedModel"]
    assert sorted(ran.stdout.splitlines()) == sorted(names * 4)


def test_links_between_pages() -> None:
    """No page links to a missing file."""
    for page in PAGES:
        for target in re.findall(r"\]\(([\w/.-]+\.md)", text_of(page)):
            linked = (page.parent / target).resolve()
            assert linked in PAGES or linked.exists(), f"{name_of(page)}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    """`mkdocs --strict` only mentions missing pages."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)

    assert sorted(listed) == sorted(
        name_of(page) for page in PAGES if page.name not in ("README.md", "features.md")
    )


def test_code_width() -> None:
    """Examples need no horizontal scrolling."""
    wide = [
        f"{name_of(page)}:{line + number}"
        for page in PAGES
        for section in (None, *COLLECTED)
        for line, code in blocks(page, section)
        for number, text in enumerate(code.splitlines(), 1)
        if len(text) > 85
    ]
    assert wide == []


def test_documented_errors() -> None:
    """The page of errors lists exactly the existing errors."""
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    tree = page.partition("```text\n")[2].partition("```")[0]
    shown = re.findall(r"^(?:[│ ]*[├└]── )?(\w+Error)\b", tree, re.MULTILINE)

    assert sorted(shown) == sorted(name for name in vars(errors) if name.endswith("Error"))


PUBLIC = {name for package in PUBLIC_PACKAGES for name in exports_of(package)}
INSIDE = (
    "architecture.md",
    "features.md",
    "reference/index.md",
)  # have names that are not public, or of others
# Classes of others that the pages name outside of their code.
OTHERS = {
    *("AbstractSessionRepositoryTests", "ApplicationError", "AsyncClient", "CancelledError"),
    *("CompactionResult", "DefaultAzureCredential", "EventQuery", "EventSource", "EventType"),
    *("FunctionToolset", "InjectedToolArg", "InvokeModel", "InvokeModelWithResponseStream"),
    *("JdbcChatMemoryRepository", "NaN", "ParameterizedTypeReference", "QdrantClient"),
    *("RecursiveSummarizationCompactionStrategy", "RetryInfo", "SessionAdvisors"),
    *("SessionTurnAdvisor", "StaticPool", "StreamingResponse", "SummarizationMiddleware"),
    *("TaskGroup", "TextEmbedding"),
    *("TokenCount", "TokenVerifier", "ToolException", "ToolOutputFileContent"),
    *("ToolOutputImage", "ToolOutputText", "ToolReturn", "TravelTools", "TypeForm"),
    *("ValidationError", "WindowCompactionStrategy"),
}
ANY_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CLASS_NAME = re.compile(r"""(?<![\w"'/-])[A-Z][a-z0-9]+[A-Z]\w*""")


TELEMETRY = "".join(
    file.read_text(encoding="utf-8")
    for package in ("observability", "decisions", "durable")
    for file in (ROOT / "chatclient" / package).glob("*.py")
)


def is_known(name: str, code: str) -> bool:
    """Return whether a class is public, one of Python or of others, or in the *code* of a page."""
    known = name in PUBLIC or name in OTHERS or name in code
    return known or hasattr(builtins, name) or hasattr(typing, name)


def is_public(name: str) -> bool:
    """Return whether a dotted name is a public package, in one, or an attribute of telemetry."""
    package, _, last = name.rpartition(".")
    if name in PUBLIC_PACKAGES or (package in PUBLIC_PACKAGES and last in exports_of(package)):
        return True
    return f'"{name}"' in TELEMETRY or name in ("chatclient.toml", "chatclient.testing.plugin")


@pytest.mark.parametrize("page", [p for p in PAGES if name_of(p) not in INSIDE], ids=name_of)
def test_names_exist(page: Path) -> None:
    """Names of the library, and classes in inline code, exist in public packages."""
    text = text_of(page)
    code, text = " ".join(ANY_BLOCK.findall(text)), ANY_BLOCK.sub("", text)
    if page.name == "coming-from.md":  # its tables begin with names of other libraries
        text = re.sub(r"^\| .*? \| ", "", text, flags=re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", text)
    dotted = {name for each in inline for name in re.findall(r"\bchatclient(?:\.\w+)+", each)}
    classes = {name for each in inline for name in CLASS_NAME.findall(each)}
    modules = {
        pair for each in inline for pair in re.findall(r"(?<![\w.])([a-z]\w*)\.([A-Z]\w+)", each)
    }

    assert [name for name in dotted if not is_public(name)] == []
    assert [name for name in classes if not is_known(name, code)] == []
    assert [pair for pair in modules if pair[1] in PUBLIC and pair[0] != "chatclient"] == []


DOCUMENTS = ROOT.parent / "shared" / "spec" / "documents"
REFERENCE_NAME = re.compile(r"@[A-Z][A-Za-z]+\b|\b(?:[A-Z][a-z0-9]+){2,}\b")
# Classes of examples, of Java and of Spring itself, and joined words in the documents.
EXAMPLES = re.compile(
    r"""(?x) .*Tools|Weather(Request|Response)|AgentThinking|MathGenius|HelloWorld|TemperatureUnit
    |ServiceWith\w*|Custom\w*|AssistantHallucinatedTool|ChatClientAPI
    |Local\w*|DateTime\w*|CompletableFuture|RuntimeException|OutOfMemoryError|Atomic\w*|GitHub|GraalVM
    |@(Bean|Autowired|Override|Component|Configuration|FunctionalInterface)
    |Containstool\w*|The[A-Z]\w*|@?[A-Z]\w*(?:annotation|instance|implementation|and|but|finds|in
    |sends|from|returns|identifies)"""
)


@pytest.mark.skipif(not DOCUMENTS.exists(), reason="the reference documents are not here")
def test_names_of_the_reference_implementation() -> None:
    """Each class and annotation is on the page of known names."""
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    texts = [file.read_text(encoding="utf-8") for file in DOCUMENTS.glob("*.txt")]
    names = {name for text in texts for name in REFERENCE_NAME.findall(text)}

    assert len(names) > 100
    assert sorted(n for n in names if n not in page and not EXAMPLES.fullmatch(n)) == []
