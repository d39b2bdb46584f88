"""Questions about a folder of documents, answered with citations.

Reads the files (Markdown, text, PDF, Office, HTML), and indexes what has changed since the last
time in a SQLite file. CHATCLIENT_MODEL names another model than the local one.

    pip install 'chatclient[documents,embeddings,local,vectors]'
    python examples/docs_questions.py docs "How do I limit the rounds of tool calls?"
"""

import argparse
import os
from functools import partial
from pathlib import Path

from pydantic import BaseModel, Field

from chatclient import ChatClient, ChatModel
from chatclient.advisors import QuestionAnswerAdvisor
from chatclient.providers import MiniLmEmbeddingModel
from chatclient.retrieval import (
    ConversionCache,
    Document,
    DocumentIndex,
    DocumentReadError,
    FormatSplitter,
    IndexReport,
    SqliteIndexRecord,
    SqliteVectorStore,
    VectorStore,
    framed,
    read_documents,
)


class Answer(BaseModel):
    """An answer, and the documents that it is based on."""

    text: str = Field(description="the answer, in one to three sentences")
    documents: list[int] = Field(description="the numbers of the documents that say so")


def update_index(folder: Path, database: Path, store: VectorStore) -> IndexReport:
    """Bring the index of *folder* up to date; files that cannot be read keep their chunks."""
    unreadable: list[DocumentReadError] = []
    cache = ConversionCache(database.with_suffix(".converted"))
    documents = read_documents(folder, on_error=unreadable.append, cache=cache)
    for error in unreadable:
        print(f"Left out: {error}")
    splitter = FormatSplitter(store.embedding_model)
    index = DocumentIndex(store, SqliteIndexRecord(database), splitter)
    return index.update(documents, keep=[error.source for error in unreadable])


def place(document: Document) -> str:
    """Return where *document* is from: file, page or line, and heading."""
    metadata = document.metadata
    part = f"page {metadata['page']}" if "page" in metadata else f"line {metadata['line']}"
    heading = f" ({metadata['heading']})" if metadata.get("heading") else ""
    return f"{metadata['source']}, {part}{heading}"


def ask(client: ChatClient, question: str) -> None:
    """Print the answer to *question* with its sources."""
    response = client.prompt(question).call()
    answer = response.entity(Answer)
    found = response.documents()
    # A model may cite a document that does not exist, or none.
    cited = [found[number - 1] for number in answer.documents if 0 < number <= len(found)]
    print(f"\n{question}\n\n    {answer.text}\n")
    for document in dict.fromkeys(map(place, cited)):
        print(f"    - {document}")
    if not cited:
        print("    No document was cited. Searched:")
        for document in dict.fromkeys(map(place, found)):
            print(f"    - {document}")


def main(model: ChatModel | None = None) -> None:
    """Index a folder and answer questions about it, with *model* or that of the environment."""
    parser = argparse.ArgumentParser(description="Answers questions about a folder of documents.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs"))
    parser.add_argument("question", nargs="*", default=["How are failures of a tool handled?"])
    parser.add_argument("--database", type=Path, default=Path("docs_questions.db"))
    arguments = parser.parse_args()

    with SqliteVectorStore(arguments.database, MiniLmEmbeddingModel()) as store:
        print(f"Reading {arguments.folder} ...")
        report = update_index(arguments.folder, arguments.database, store)
        print(
            f"{len(report.added)} files added, {len(report.changed)} changed,"
            f" {len(report.removed)} removed, {len(report.unchanged)} unchanged;"
            f" {report.embedded} chunks embedded"
        )
        numbered = partial(framed, metadata_keys=("source", "heading"))
        advisor = QuestionAnswerAdvisor(store, top_k=5, formatter=numbered)
        builder = ChatClient.builder(model or os.environ.get("CHATCLIENT_MODEL", "local"))
        builder = builder.default_advisors(advisor).default_options(temperature=0.0)
        with builder.build() as client:
            for question in arguments.question:
                ask(client, question)


if __name__ == "__main__":
    main()
