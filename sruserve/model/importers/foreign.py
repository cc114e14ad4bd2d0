"""Files of other frameworks: what they are, and what to do instead."""

from pathlib import Path

_SAVE = "and save its state dict: torch.save(model.state_dict(), 'weights.pt')"
_REBUILD = (
    "build the same network in PyTorch, copy the weights into it, compare its outputs with the "
    f"original's, {_SAVE}"
)
_ONNX = "an ONNX graph: import it with --format onnx"
_KERAS = "a file of Keras or HDF5: import it with --format keras"
_SCRIPTED = (
    f"a TorchScript archive, which is code: load it with torch.jit.load where you trust it, {_SAVE}"
)
_TORCH7 = (
    "a file of Lua's Torch7, which may hold Lua functions and is not read: read it in Torch7 where "
    "you trust it, and save a dict of its arrays as tensors with torch.save in PyTorch"
)
_SUFFIXES = {
    ".onnx": _ONNX,
    ".h5": _KERAS,
    ".hdf5": _KERAS,
    ".keras": _KERAS,
    ".t7": _TORCH7,
    ".tflite": f"a model of TensorFlow Lite: {_REBUILD}",
    ".pb": f"a graph of TensorFlow: {_REBUILD}",
    ".gguf": f"a GGUF file: {_REBUILD}",
    ".npz": "an archive of NumPy: save a dict of its arrays as tensors with torch.save",
    ".npy": "one array of NumPy: save a dict of all tensors by name with torch.save",
}
_BEGINNINGS = {
    b"\x89HDF\r\n\x1a\n": _KERAS,
    b"GGUF": _SUFFIXES[".gguf"],
    # Torch7's first object, binary or as text: a table or a module, number 1.
    **dict.fromkeys((b"\3\0\0\0\1\0\0\0", b"\4\0\0\0\1\0\0\0", b"3\n1\n", b"4\n1\n"), _TORCH7),
}


def foreign_file(path: Path, beginning: bytes) -> str | None:
    """Return what a file of another framework is and what to do instead; None for other files.

    beginning: the first bytes of the file, at least 8 if it has them.
    """
    for magic, advice in _BEGINNINGS.items():
        if beginning.startswith(magic):
            return advice
    return _SUFFIXES.get(path.suffix.lower())


def foreign_archive(names: list[str]) -> str | None:
    """Return the same for an archive with entries of these names."""
    if "model.weights.h5" in names:
        return _KERAS
    if any(name.endswith("/constants.pkl") for name in names):
        return _SCRIPTED
    return None
