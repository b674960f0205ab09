"""What a trained model does: heads, maps, size, accuracy."""
