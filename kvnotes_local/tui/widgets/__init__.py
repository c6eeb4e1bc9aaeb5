"""Parts of screens. They know messages, never the engine."""
