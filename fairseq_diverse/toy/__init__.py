"""A synchronous grammar of an English-like and a German-like language, and the corpus that it derives."""
