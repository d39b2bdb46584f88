"""The programs of Spring AI's page on tools that run them: advisors, loops of one's own, search."""

from chatclient import (
    ChatClient,
    ChatModel,
    ChatOptions,
    ChatResponse,
    Message,
    Prompt,
    SystemMessage,
    UserMessage,
    tool,
)
from chatclient.advisors import (
    HIGHEST_PRECEDENCE,
    MessageChatMemoryAdvisor,
    ToolCallingAdvisor,
    ToolSearchToolCallingAdvisor,
)
from chatclient.chat import MessageAggregator
from chatclient.memory import MessageWindowChatMemory
from chatclient.providers import EmbeddingModel
from chatclient.retrieval import InMemoryVectorStore
from chatclient.tools import ToolCallingManager, ToolFailurePolicy, tool_callbacks
from chatclient.tools.search import (
    AlwaysEvictStrategy,
    CompositeEvictionStrategy,
    KeywordToolIndex,
    LruEvictionStrategy,
    NeverEvictStrategy,
    RegexToolIndex,
    TtlEvictionStrategy,
    VectorToolIndex,
)


@tool
def weather(city: str) -> str:
    """Get the weather in a city."""
    if city == "Atlantis":
        raise ValueError("there is no such city")
    return f"{city}: 14 degrees"


QUESTION = "What is the weather in Amsterdam and Paris?"


# --- the loop of the framework ---


def framework_controlled(model: ChatModel) -> str:
    """Let the client run the tools."""
    return ChatClient.create(model).prompt(QUESTION).tools(weather).call().content()


def without_automatic_calls(model: ChatModel) -> ChatResponse:
    """Get the calls of one request back, and run none."""
    request = ChatClient.create(model).prompt(QUESTION).tools(weather)
    return request.tool_calling(False).call().chat_response()


def advisor_controlled(model: ChatModel) -> str:
    """Configure the advisor with the loop."""
    loop = ToolCallingAdvisor(manager=ToolCallingManager(), order=HIGHEST_PRECEDENCE + 300)
    client = ChatClient.builder(model).default_advisors(loop).build()
    return client.prompt(QUESTION).tools(weather).call().content()


def eligibility(model: ChatModel) -> ChatResponse:
    """Decide for each response whether its tools are run: here, if there is one call."""

    def one_call(response: ChatResponse) -> bool:
        return len(response.message.tool_calls) == 1

    loop = ToolCallingAdvisor(eligibility=one_call)
    client = ChatClient.builder(model).default_advisors(loop).build()
    return client.prompt(QUESTION).tools(weather).call().chat_response()


def memory_outside_the_loop(model: ChatModel) -> list[Message]:
    """Remember a conversation: the advisor's usual place."""
    memory = MessageWindowChatMemory()
    client = ChatClient.builder(model).default_advisors(MessageChatMemoryAdvisor(memory)).build()
    client.prompt(QUESTION).tools(weather).conversation("c-1").call().content()
    return memory.get("c-1")


def memory_inside_the_loop(model: ChatModel) -> list[Message]:
    """Let the memory keep the messages of the rounds, too."""
    memory = MessageWindowChatMemory()
    loop = ToolCallingAdvisor(conversation_history=False, order=HIGHEST_PRECEDENCE + 300)
    inside = MessageChatMemoryAdvisor(memory, order=HIGHEST_PRECEDENCE + 400)
    client = ChatClient.builder(model).default_advisors(inside, loop).build()
    client.prompt(QUESTION).tools(weather).conversation("c-1").call().content()
    return memory.get("c-1")


# --- loops of one's own ---


def loop_with_a_client(model: ChatModel, *, streaming: bool = False) -> str:
    """Run the tools between requests of a client."""
    manager = ToolCallingManager()
    options = ChatOptions(tool_callbacks=tool_callbacks(weather))
    client = ChatClient.create(model).mutate().tool_calling(False).build()
    prompt = Prompt([UserMessage(QUESTION)], options)
    while True:
        request = client.prompt(prompt)
        if streaming:
            stream = request.stream()
            print("".join(stream))
            response = stream.response.chat_response
        else:
            response = request.call().chat_response()
        if not response.has_tool_calls():
            return response.text
        result = manager.execute_tool_calls(prompt, response)
        prompt = Prompt(result.conversation_history, options)


def loop_with_a_model(model: ChatModel, *, streaming: bool = False) -> str:
    """Run the tools between calls of a model."""
    manager = ToolCallingManager()
    options = ChatOptions(tool_callbacks=tool_callbacks(weather))
    prompt = Prompt(QUESTION, options)
    while True:
        if streaming:
            joined = MessageAggregator()
            for chunk in model.stream(prompt):
                joined.add(chunk)
            response = joined.response()
        else:
            response = model.call(prompt)
        if not response.has_tool_calls():
            return response.text
        result = manager.execute_tool_calls(prompt, response)
        prompt = Prompt(result.conversation_history, options)


def loop_with_memory(model: ChatModel) -> tuple[str, str]:
    """Keep the conversation in a memory, and ask about it."""
    manager, memory = ToolCallingManager(), MessageWindowChatMemory()
    options = ChatOptions(tool_callbacks=tool_callbacks(weather))
    memory.add("c-1", [SystemMessage("You are helpful."), UserMessage(QUESTION)])
    while True:
        prompt = Prompt(memory.get("c-1"), options)
        response = model.call(prompt)
        if not response.has_tool_calls():
            break
        history = manager.execute_tool_calls(prompt, response).conversation_history
        memory.add("c-1", history[len(prompt.messages) :])
    memory.add("c-1", [response.message, UserMessage("What did I ask you earlier?")])
    return response.text, model.call(Prompt(memory.get("c-1"))).text


# --- errors ---


def failures_are_told(model: ChatModel) -> str:
    """Tell the model why a tool failed."""
    return ChatClient.create(model).prompt("And in Atlantis?").tools(weather).call().content()


def failures_are_raised(model: ChatModel) -> str:
    """Raise the error of a tool."""
    manager = ToolCallingManager(exception_processor=ToolFailurePolicy(always_raise=True))
    client = ChatClient.builder(model).tool_calling_manager(manager).build()
    return client.prompt("And in Atlantis?").tools(weather).call().content()


# --- tool search ---

STRATEGIES = (
    LruEvictionStrategy(200),
    NeverEvictStrategy(),
    AlwaysEvictStrategy(),
    TtlEvictionStrategy(30 * 60),
    CompositeEvictionStrategy(TtlEvictionStrategy(30 * 60), LruEvictionStrategy(200)),
)


def tool_search(model: ChatModel) -> list[str]:
    """Let the model search for tools, with each index and each strategy; return the answers."""
    answers = []
    for index in (KeywordToolIndex(), RegexToolIndex()):
        for strategy in STRATEGIES:
            search = ToolSearchToolCallingAdvisor(
                index, max_results=5, eviction_strategy=strategy, threshold=1
            )
            client = ChatClient.builder(model).default_tools(weather).default_advisors(search)
            request = client.build().prompt("What is the weather in Amsterdam?")
            answers.append(request.conversation("c-1").call().content())
    return answers


def semantic_tool_search(model: ChatModel, embedding_model: EmbeddingModel) -> str:
    """Let the model search by meaning: the tools are in a vector store."""
    search = ToolSearchToolCallingAdvisor(
        VectorToolIndex(InMemoryVectorStore(embedding_model)), max_results=5, threshold=1
    )
    client = ChatClient.builder(model).default_tools(weather).default_advisors(search).build()
    request = client.prompt("What is the weather in Amsterdam?")
    return request.conversation("c-1").call().content()
