"""What is observed of single requests: lines of a log, traces, and metrics of generation."""
