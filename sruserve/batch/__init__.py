"""Answer the lines of a file by a model in this process, and continue after an interruption."""
