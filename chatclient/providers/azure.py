"""OpenAI's models on Azure, with API keys or Entra ID (extra `azure`)."""
