"""What follows the stack: pooling, layers over rows, scores."""
