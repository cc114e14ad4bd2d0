"""ONNX graphs of models: one step, or whole sequences."""
