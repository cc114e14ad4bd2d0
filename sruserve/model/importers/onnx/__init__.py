"""Networks as ONNX graphs: nodes with an LSTM, GRU or RNN among them."""
