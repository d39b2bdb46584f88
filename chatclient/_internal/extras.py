"""Packages that the extras of this library install, and the error of one that is missing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from chatclient.errors import MissingExtraError

# The names on PyPI and the extra, by the module that is imported.
_EXTRAS: Mapping[str, tuple[str, str]] = {
    "ag_ui": ("ag-ui-protocol", "ag-ui"),
    "agents": ("openai-agents", "openai-agents"),
    "azure": ("azure-identity", "azure"),
    "botocore": ("botocore", "bedrock"),
    "dbos": ("DBOS", "dbos"),
    "fastembed": ("fastembed", "fastembed"),
    "google": ("google-auth", "vertex"),
    "h2": ("h2", "http2"),
    "httpx2": ("httpx2", "httpx2"),
    "httpx_aiohttp": ("httpx-aiohttp", "aiohttp"),
    "huggingface_hub": ("huggingface-hub", "local"),
    "langchain_core": ("langchain-core", "langchain"),
    "limits": ("limits", "limits"),
    "markdown_it": ("markdown-it-py", "documents"),
    "markitdown": ("markitdown", "documents"),
    "mcp": ("the MCP SDK", "mcp"),
    "numpy": ("numpy", "vectors"),
    "onnxruntime": ("onnxruntime", "embeddings"),
    "psycopg": ("psycopg", "postgres"),
    "pydantic_ai": ("pydantic-ai", "pydantic-ai"),
    "pydantic_evals": ("pydantic-evals", "evals"),
    "pydantic_settings": ("pydantic-settings", "settings"),
    "pymysql": ("PyMySQL", "mysql"),
    "pypdfium2": ("pypdfium2", "documents"),
    "qdrant_client": ("qdrant-client", "qdrant"),
    "redis": ("redis-py", "redis"),
    "semantic_text_splitter": ("semantic-text-splitter", "documents"),
    "socksio": ("socksio", "socks"),
    "sqlalchemy": ("SQLAlchemy", "sql"),
    "starlette": ("Starlette", "web"),
    "tokenizers": ("tokenizers", "embeddings"),
    "uvicorn": ("uvicorn", "web"),
    "xllamacpp": ("xllamacpp", "local"),
    "yaml": ("PyYAML", "skills"),
}
_PYTEST = "pytest"  # which no extra installs


@contextmanager
def needed_by(what: str, *, extra: str | None = None) -> Iterator[None]:
    """Raise an error with the command to install a missing package that the block imports.

    Args:
        what: What needs the packages.
        extra: The extra, if the package is in several of them.

    Raises:
        MissingExtraError: A package of an extra is missing.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        root = (error.name or "").partition(".")[0]
        if root == _PYTEST:
            raise MissingExtraError(f"{what} needs pytest; pip install pytest") from error
        if root not in _EXTRAS:
            raise
        package, usual = _EXTRAS[root]
        msg = f"{what} needs {package}; pip install 'chatclient[{extra or usual}]'"
        raise MissingExtraError(msg) from error
