"""Makes the README's links lead somewhere on PyPI too, where there are no files beside it."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

DOCS = "https://chatclient.readthedocs.io"


class ReadmeHook(MetadataHookInterface):
    """Points links to pages of the docs at the site that shows them."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme; links to files that the site does not show become plain text."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/([\w-]+)\.md(#[\w-]+)?\)", rf"]({DOCS}/\1/\2)", text)
        text = re.sub(r"\[([^]]+)\]\([\w/]+\.md\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
