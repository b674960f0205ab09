"""A synchronous grammar of an English-like and a German-like language, and a corpus drawn from it."""
