"""Arithmetic coding in integers: symbols with frequencies to bytes, and back.

The range coder of Martin (1979), with 64 bits of state and carries into bytes already written. A
code is at most 2 bytes longer than the symbols' information.
"""

from sruserve.compression.errors import DamagedFileError

MAX_TOTAL = 1 << 40  # of all frequencies together; the range is at least 2^16 times as large
_STATE = 1 << 64
_MASK = _STATE - 1
_LEAST_RANGE = 1 << 56


class RangeEncoder:
    """Turns symbols into bytes."""

    def __init__(self) -> None:
        self._low, self._range = 0, _STATE
        self._bytes = bytearray()

    def encode(self, low: int, frequency: int, total: int) -> None:
        """Add a symbol.

        low: frequencies of all symbols before it. frequency: its own, at least 1.
        total: frequencies of all symbols, at most `MAX_TOTAL`.
        """
        unit = self._range // total
        self._low += unit * low
        self._range = unit * frequency
        if self._low > _MASK:
            self._carry()
        while self._range < _LEAST_RANGE:
            self._bytes.append(self._low >> 56)
            self._low = self._low << 8 & _MASK
            self._range <<= 8

    def finish(self) -> bytes:
        """Return the code. The decoder reads zeros after its end, so it ends with no zero byte."""
        # The range holds a number of which only the first byte is not zero.
        self._low += _LEAST_RANGE - 1
        if self._low > _MASK:
            self._carry()
        self._bytes.append(self._low >> 56)
        return bytes(self._bytes).rstrip(b"\0")

    def _carry(self) -> None:
        """Add 1 to the number that was written."""
        self._low &= _MASK
        place = len(self._bytes) - 1
        while self._bytes[place] == 0xFF:
            self._bytes[place] = 0
            place -= 1
        self._bytes[place] += 1


class RangeDecoder:
    """Reads the symbols of a code: for each, `target` and then `consume`."""

    def __init__(self, code: bytes) -> None:
        self._bytes, self._place = code, 8
        self._value = int.from_bytes(code[:8].ljust(8, b"\0"))
        self._range, self._unit = _STATE, 0

    def target(self, total: int) -> int:
        """Return a number below `total`: the next symbol is the one whose frequencies include it.

        Raises `DamagedFileError` for a code that no encoder made.
        """
        self._unit = self._range // total
        target = self._value // self._unit
        if target >= total:
            raise DamagedFileError("the file is damaged: its code is no code of the model")
        return target

    def consume(self, low: int, frequency: int) -> None:
        """Go on to the next symbol; the arguments are those of `RangeEncoder.encode`."""
        self._value -= self._unit * low
        self._range = self._unit * frequency
        while self._range < _LEAST_RANGE:
            byte = self._bytes[self._place] if self._place < len(self._bytes) else 0
            self._value = self._value << 8 | byte
            self._place += 1
            self._range <<= 8
