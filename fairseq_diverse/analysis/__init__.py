"""Analysis of trained models: heads, maps, size, accuracy."""
