"""Directories that tests read from."""

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parent.parent
