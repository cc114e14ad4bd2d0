"""The definition of every recurrence, in plain torch."""
