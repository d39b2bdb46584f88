"""The tool loop: calls the model and its tools until it answers."""
