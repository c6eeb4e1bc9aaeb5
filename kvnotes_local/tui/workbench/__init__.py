"""The one place where the terminal UI meets the engine, the notebook and the files."""
