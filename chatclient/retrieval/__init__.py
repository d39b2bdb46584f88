"""Documents, vector stores and the steps of retrieval-augmented generation."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.chat.document import Document as Document
    from chatclient.retrieval.documents import (
        ConcatenationJoiner as ConcatenationJoiner,
        DocumentLimit as DocumentLimit,
        DocumentReranker as DocumentReranker,
        ReciprocalRankJoiner as ReciprocalRankJoiner,
    )
    from chatclient.retrieval.ingestion.index import (
        DocumentIndex as DocumentIndex,
        IndexReport as IndexReport,
        Splitter as Splitter,
    )
    from chatclient.retrieval.ingestion.limits import (
        ReadLimits as ReadLimits,
    )
    from chatclient.retrieval.ingestion.markdown import (
        FormatSplitter as FormatSplitter,
        MarkdownSplitter as MarkdownSplitter,
    )
    from chatclient.retrieval.ingestion.reading import (
        ConversionCache as ConversionCache,
        DocumentReadError as DocumentReadError,
        OnReadError as OnReadError,
        aread_documents as aread_documents,
        read_documents as read_documents,
    )
    from chatclient.retrieval.ingestion.record import (
        IndexConflictError as IndexConflictError,
        IndexEntry as IndexEntry,
        IndexRecord as IndexRecord,
        IndexRecordError as IndexRecordError,
        IndexState as IndexState,
        InMemoryIndexRecord as InMemoryIndexRecord,
        SqliteIndexRecord as SqliteIndexRecord,
    )
    from chatclient.retrieval.ingestion.record_sql import (
        SqlIndexRecord as SqlIndexRecord,
    )
    from chatclient.retrieval.ingestion.splitter import (
        ChunkLimit as ChunkLimit,
        CodeSplitter as CodeSplitter,
        DocumentSplitter as DocumentSplitter,
        SentenceSplitter as SentenceSplitter,
        SizeLimit as SizeLimit,
    )
    from chatclient.retrieval.prompt import (
        ContextualQueryAugmenter as ContextualQueryAugmenter,
        framed as framed,
    )
    from chatclient.retrieval.query import (
        DocumentJoiner as DocumentJoiner,
        DocumentPostProcessor as DocumentPostProcessor,
        DocumentRetriever as DocumentRetriever,
        Query as Query,
        QueryAugmenter as QueryAugmenter,
        QueryExpander as QueryExpander,
        QueryRouter as QueryRouter,
        QueryTransformer as QueryTransformer,
        RetrievalError as RetrievalError,
    )
    from chatclient.retrieval.retrievers import (
        HybridDocumentRetriever as HybridDocumentRetriever,
        KeywordDocumentRetriever as KeywordDocumentRetriever,
        LanguageModelQueryRouter as LanguageModelQueryRouter,
        VectorStoreDocumentRetriever as VectorStoreDocumentRetriever,
    )
    from chatclient.retrieval.transformers import (
        CompressionQueryTransformer as CompressionQueryTransformer,
        MultiQueryExpander as MultiQueryExpander,
        RewriteQueryTransformer as RewriteQueryTransformer,
        TranslationQueryTransformer as TranslationQueryTransformer,
    )
    from chatclient.retrieval.vector_store.filters import (
        Filter as Filter,
        equal_to as equal_to,
        predicate as predicate,
    )
    from chatclient.retrieval.vector_store.in_memory import (
        InMemoryVectorStore as InMemoryVectorStore,
    )
    from chatclient.retrieval.vector_store.pgvector import (
        PgVectorStore as PgVectorStore,
    )
    from chatclient.retrieval.vector_store.qdrant import (
        QdrantVectorStore as QdrantVectorStore,
    )
    from chatclient.retrieval.vector_store.sql_filters import (
        sql as sql,
    )
    from chatclient.retrieval.vector_store.sqlite import (
        SqliteVectorStore as SqliteVectorStore,
    )
    from chatclient.retrieval.vector_store.store import (
        DEFAULT_TOP_K as DEFAULT_TOP_K,
        HybridVectorStore as HybridVectorStore,
        SimilaritySearch as SimilaritySearch,
        VectorStore as VectorStore,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
