"""Tools, models and vector stores of LangChain, OpenAI Agents and pydantic-ai."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.bridges.langchain_model import (
        LangChainChatModel as LangChainChatModel,
    )
    from chatclient.bridges.langchain_tools import (
        to_langchain as to_langchain,
        tools_from_langchain as tools_from_langchain,
    )
    from chatclient.bridges.langchain_vectors import (
        LangChainVectorStore as LangChainVectorStore,
    )
    from chatclient.bridges.openai_agents import (
        tools_from_openai_agents as tools_from_openai_agents,
    )
    from chatclient.bridges.pydantic_ai import (
        tools_from_pydantic_ai as tools_from_pydantic_ai,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
