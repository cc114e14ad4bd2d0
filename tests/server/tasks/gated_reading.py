"""Reading that waits until a test lets it go on."""

import threading
from typing import Any

import pytest

from sruserve.model.text.byte_values import Bytes


class GatedReading:
    """Reading a text takes until `go_on` is set. begun: the length of each that was begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.begun = threading.Event(), list[int]()
        encode = Bytes.encode

        def gated_encode(codec: Bytes, *args: Any) -> Any:
            self.begun.append(len(args[0]))
            self.go_on.wait(60)
            return encode(codec, *args)

        monkeypatch.setattr(Bytes, "encode", gated_encode)
