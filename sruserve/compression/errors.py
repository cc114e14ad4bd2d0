"""Errors of compression and decompression.

CompressionError
├── UnfitModelError    the model cannot compress, or its numbers are not exact
├── TooLongError       the original has more bytes than it may have
├── DamagedFileError   the file is no compressed file, or was changed or cut
├── DifferentBitsError the file is whole, but the network's bits are not those of its compression
└── OtherBuildError    the file was made by another model, build or processor
"""

from sruserve.model.errors import ModelError


class CompressionError(ModelError):
    code = "compression_failed"


class UnfitModelError(CompressionError):
    code = "unfit_model"


class TooLongError(CompressionError):
    code = "too_long"


class DamagedFileError(CompressionError):
    code = "damaged_file"


class DifferentBitsError(CompressionError):
    code = "different_bits"


class OtherBuildError(CompressionError):
    code = "other_build"
