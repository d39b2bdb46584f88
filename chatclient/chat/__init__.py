"""Messages, prompts, options and responses, and the contracts of models and tools."""
