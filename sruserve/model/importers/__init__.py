"""Foreign checkpoints into model folders, one file per origin."""
