"""A process that runs some turns of a conversation with the local model.

`live/test_memory.py` runs it with these arguments: the database, the position of memory (`outside`
or `inside` the tool loop), the mode, and the turns as JSON, each a text and whether the tool is
offered. It prints a line of JSON for each turn.
"""

import json
import sys

from chatclient import ChatClient, tool
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.chain.chain import MEMORY_ORDER, TOOL_CALLING_ORDER
from chatclient.memory import MessageWindowChatMemory
from chatclient.memory.sql.repository import SqlChatMemoryRepository
from chatclient.providers.local.model import LocalChatModel
from chatclient.testing import Ask


@tool(effect="read")
def get_current_weather(city: str) -> dict[str, str | int]:
    """Get the current weather in a city.

    Args:
        city: The city's name.
    """
    return {"city": city, "temperature_celsius": 19}


def main() -> None:
    database, place, mode, turns = sys.argv[1:]
    order = MEMORY_ORDER if place == "outside" else TOOL_CALLING_ORDER + 100
    with SqlChatMemoryRepository(f"sqlite:///{database}") as repository, LocalChatModel() as model:
        memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(repository), order=order)
        client = (
            ChatClient.builder(model)
            .default_advisors(memory)
            .default_options(temperature=0.0, max_tokens=200)
            .build()
        )
        ask = Ask(mode)  # type: ignore[arg-type]  # one of the four modes
        for text, offered in json.loads(turns):
            request = client.prompt(text).conversation("c-1")
            if offered:
                request = request.tools(get_current_weather)
            asked = ask(request)
            executed = [e.tool_call.arguments for e in asked.executions]
            sys.stdout.write(json.dumps({"text": asked.text, "executed": executed}) + "\n")


if __name__ == "__main__":
    main()
