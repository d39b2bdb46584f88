"""The advisor contract and the chain around the model."""
