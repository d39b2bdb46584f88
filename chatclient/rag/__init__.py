"""Retrieval: from what the user asks to the documents that help, and into the prompt."""

from chatclient.rag.augmentation import ContextualQueryAugmenter, framed
from chatclient.rag.documents import ConcatenationJoiner, DocumentLimit, ReciprocalRankJoiner
from chatclient.rag.query import (
    DocumentJoiner,
    DocumentPostProcessor,
    DocumentRetriever,
    Query,
    QueryAugmenter,
    QueryExpander,
    QueryRouter,
    QueryTransformer,
    RetrievalError,
)
from chatclient.rag.routing import LanguageModelQueryRouter
from chatclient.rag.stores import VectorStoreDocumentRetriever
from chatclient.rag.transformers import (
    CompressionQueryTransformer,
    MultiQueryExpander,
    RewriteQueryTransformer,
    TranslationQueryTransformer,
)

__all__ = [
    "CompressionQueryTransformer",
    "ConcatenationJoiner",
    "ContextualQueryAugmenter",
    "DocumentJoiner",
    "DocumentLimit",
    "DocumentPostProcessor",
    "DocumentRetriever",
    "LanguageModelQueryRouter",
    "MultiQueryExpander",
    "Query",
    "QueryAugmenter",
    "QueryExpander",
    "QueryRouter",
    "QueryTransformer",
    "ReciprocalRankJoiner",
    "RetrievalError",
    "RewriteQueryTransformer",
    "TranslationQueryTransformer",
    "VectorStoreDocumentRetriever",
    "framed",
]
