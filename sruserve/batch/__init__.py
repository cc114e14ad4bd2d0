"""Answer the lines of a file by a model in this process, and go on after an interruption."""
