"""Trained models in other forms: ONNX graphs."""
