"""The head of a compressed file: what made it, and must read it."""

from dataclasses import dataclass
from typing import BinaryIO, cast

import torch
from pydantic import TypeAdapter, ValidationError

from sruserve import __version__
from sruserve.compression.container import Reader, checksum
from sruserve.compression.errors import DamagedFileError, OtherBuildError
from sruserve.model.folder import Model
from sruserve.model.names import DType

MAGIC = (
    b"\x89sruz\r\n\x01"  # not text, so a transfer that changes line ends is seen; 1: the version
)
_MAX_HEADER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Header:
    """All that the bits of the network's scores depend on.

    model: the model's name, to find it again. digest: see `Model`. kernel: with its instruction
    set. build: this package and torch, with torch's instruction set. device: "cpu", or a GPU's
    name.
    """

    model: str
    digest: str
    dtype: DType
    kernel: str
    build: str
    device: str

    def check(self, model: Model, any_build: bool = False) -> None:
        """Raise `OtherBuildError` unless this model, here, computes the bits of the file.

        any_build: allow others than the file's kernel, build and device.
        """
        here = describe(model)
        for name, noun in _NOUNS.items():
            theirs, ours = getattr(self, name), getattr(here, name)
            if theirs == ours or (any_build and name not in _ADVICE):
                continue
            raise OtherBuildError(
                f"the file was made with {noun} {theirs}, and this is {ours}: "
                f"{_ADVICE.get(name, _ANY_BUILD)}"
            )


_NOUNS = {
    "digest": "the weights",
    "dtype": "dtype",
    "kernel": "the kernel",
    "build": "the build",
    "device": "the device",
}
_ADVICE = {
    "digest": "name the folder of the file's model with --model",
    "dtype": "set --dtype",
}
_ANY_BUILD = (
    "decompress it where it was made, or try --any-build, which ends with an error unless the "
    "original comes out"
)
_JSON = TypeAdapter(Header)


def describe(model: Model) -> Header:
    """Return the header of files that a model compresses in this process."""
    device = model.network.device
    gpu = device.type == "cuda"
    return Header(
        model.name,
        model.digest,
        cast(DType, model.dtype),
        model.network.kernel,
        f"sruserve {__version__}, torch {torch.__version__} "
        f"{torch.backends.cpu.get_cpu_capability()}",
        torch.cuda.get_device_name(device) if gpu else device.type,
    )


def write_header(target: BinaryIO, header: Header) -> int:
    """Write the head of a file; returns its bytes."""
    content = _JSON.dump_json(header)
    length = len(content).to_bytes(2)
    data = MAGIC + length + content + checksum(length + content)
    target.write(data)
    return len(data)


def read_header(source: Reader) -> Header:
    """Read the head of a file. Raises `DamagedFileError`, also for a file of another kind."""
    magic = source.read(len(MAGIC))
    if magic[:-1] != MAGIC[:-1]:
        raise DamagedFileError(
            "this is no file of `sruserve compress`: give one that it has written"
        )
    if magic != MAGIC:
        raise DamagedFileError(
            f"the file has version {magic[-1]} of the format; this sruserve reads version "
            f"{MAGIC[-1]}: use another version of sruserve"
        )
    length = source.read(2)
    size = int.from_bytes(length)
    if size > _MAX_HEADER_BYTES:
        raise DamagedFileError(
            f"the file is damaged: its header has {size:,} bytes; the limit is "
            f"{_MAX_HEADER_BYTES:,}"
        )
    content = source.read(size)
    if source.read(4) != checksum(length + content):
        raise DamagedFileError("the file is damaged: its header has another checksum")
    try:
        return _JSON.validate_json(content)
    except ValidationError as error:
        raise DamagedFileError("the file is damaged: its header is incomplete") from error
