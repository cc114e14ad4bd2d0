"""Vocabularies: texts to ids and back."""
