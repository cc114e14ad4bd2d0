"""ONNX files as models: read, checked, and run by ONNX Runtime."""
