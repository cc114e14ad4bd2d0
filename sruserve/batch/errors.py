"""Errors of a run that end it, unlike those of a line.

BatchError
├── InputError      the input has not the columns or the encoding that it should have
├── OutputError     the output is the input
└── ChangedError    another input, model or option than that of the output that is continued
"""

from sruserve.model.errors import ModelError


class BatchError(ModelError):
    code = "batch_failed"


class InputError(BatchError):
    code = "invalid_batch_input"


class OutputError(BatchError):
    code = "invalid_batch_output"


class ChangedError(BatchError):
    code = "batch_changed"
