"""Log lines: JSON or text, written by a thread that no slow reader can make others wait for."""
