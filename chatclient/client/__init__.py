"""`ChatClient`, its requests and its responses."""
