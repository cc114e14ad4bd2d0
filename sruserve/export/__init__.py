"""Trained models in other forms: ONNX graphs."""

import os

# ONNX Runtime from 1.29 on sends data about the process, its models and its errors to the vendor,
# and leaves files in the home folder, unless this is set before its import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
