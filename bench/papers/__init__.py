"""The systems of the papers, at the papers' sizes, measured on one machine."""
