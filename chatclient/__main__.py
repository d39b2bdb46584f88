"""`python -m chatclient`: chat in the terminal."""

from chatclient.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
