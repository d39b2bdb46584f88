"""Files of models on the Hugging Face Hub, and the errors of fetching them."""

from dataclasses import dataclass

from chatclient.errors import ChatClientError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A file of a model on the Hugging Face Hub, identified by its hash.

    To fetch the same content from another repository, use `dataclasses.replace`.

    Attributes:
        name: The model's name.
        repository: The repository's id, such as `Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF`.
        filename: The path of the file in the repository.
        sha256: SHA-256 of the file, in hexadecimal.
        size: Bytes of the file.
        revision: Commit, branch or tag.
    """

    name: str
    repository: str
    filename: str
    sha256: str
    size: int
    revision: str = "main"

    @property
    def megabytes(self) -> str:
        """The size, for messages."""
        return f"{self.size / 1_000_000:.0f} MB"


QWEN_CODER_1_5B = ModelFile(
    name="Qwen2.5-Coder 1.5B",
    repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    size=1_117_320_768,
)
"""Calls tools and uses their results: 1.5 billion weights, Q4_K_M, Apache-2.0."""

QWEN_CODER_0_5B = ModelFile(
    name="Qwen2.5-Coder 0.5B",
    repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
    filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    size=491_400_064,
)
"""Small, for quick tests: it calls tools, but ignores their results. Apache-2.0."""

MINILM_WEIGHTS = ModelFile(
    name="all-MiniLM-L6-v2",
    repository="sentence-transformers/all-MiniLM-L6-v2",
    filename="onnx/model_quint8_avx2.onnx",
    sha256="b941bf19f1f1283680f449fa6a7336bb5600bdcd5f84d10ddc5cd72218a0fd21",
    size=23_046_789,
)
"""Weights of all-MiniLM-L6-v2 as 8-bit integers. Apache-2.0."""

MINILM_TOKENIZER = ModelFile(
    name="the tokenizer of all-MiniLM-L6-v2",
    repository="sentence-transformers/all-MiniLM-L6-v2",
    filename="tokenizer.json",
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    size=466_247,
)
"""The tokenizer of all-MiniLM-L6-v2. Apache-2.0."""


class ModelFileError(ChatClientError):
    """A file of a model cannot be provided.

    Attributes:
        file: The file.
    """

    def __init__(self, message: str, file: ModelFile) -> None:
        super().__init__(message)
        self.file = file


class ModelFileUnavailableError(ModelFileError):
    """The hub cannot be reached, and the file has not been downloaded before."""


class ModelFileNotFoundError(ModelFileError):
    """The hub has no such repository, revision or file, or access to it is restricted."""


class ModelFileCorruptError(ModelFileError):
    """The file has another SHA-256 than expected."""


class ModelFileStorageError(ModelFileError):
    """The file cannot be read or stored, for example because the disk is full."""
