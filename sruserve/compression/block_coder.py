"""Code the symbols of one block: for each, whether it is a literal byte, then which one it is."""

from zlib import crc32

from sruserve.compression.alphabet import Alphabet, Speller, Symbols, literals
from sruserve.compression.container import CHECKSUM_BYTES, Block, checksum
from sruserve.compression.counts import Counts
from sruserve.compression.errors import DamagedFileError, DifferentBitsError
from sruserve.compression.predictor import Prediction, Predictor
from sruserve.compression.range_coder import RangeDecoder, RangeEncoder

_TOKEN, _LITERAL = 0, 1
_BYTES = 256
FOREIGN_BITS = 4.0  # of a byte: from here on, counts of bytes may foresee more than the model


def encode_block(
    data: bytes, alphabet: Alphabet, predictor: Predictor, foreign_bits: float = FOREIGN_BITS
) -> Block:
    """Encode a part of a file: with the ids of a text in it, or as literal bytes alone.

    foreign_bits: of a byte, above which literal bytes alone are tried, too.
    """
    code, scores = _encode(alphabet.symbols(data), predictor)
    if 8 * len(code) > foreign_bits * len(data):
        code, scores = min((code, scores), _encode(literals(data), predictor), key=_length)
    return Block(len(data), code, checksum(data), scores.to_bytes(CHECKSUM_BYTES))


def _encode(symbols: Symbols, predictor: Predictor) -> tuple[bytes, int]:
    """Return the code of symbols and the checksum of the network's scores.

    The network does not see literal bytes.
    """
    coder, kinds, literal_bytes = RangeEncoder(), Counts(2), Counts(_BYTES)
    reading = predictor.read(symbols[symbols >= 0])
    for symbol in symbols.tolist():
        kind = _LITERAL if symbol < 0 else _TOKEN
        coder.encode(*kinds.interval(kind))
        kinds.add(kind)
        if kind == _TOKEN:
            coder.encode(*next(reading))
        else:
            coder.encode(*literal_bytes.interval(~symbol))
            literal_bytes.add(~symbol)
    return coder.finish(), reading.checksum


def _length(encoded: tuple[bytes, int]) -> int:
    return len(encoded[0])


class BlockDecoder:
    """Decodes one block, an id at a time."""

    def __init__(self, block: Block, alphabet: Alphabet) -> None:
        self._coder, self._block = RangeDecoder(block.code), block
        self._kinds, self._literals = Counts(2), Counts(_BYTES)
        self._speller = Speller(alphabet)
        self._data, self._scores = bytearray(), 0

    @property
    def decoded(self) -> int:
        """How many of the block's bytes are known."""
        return len(self._data)

    def next(self, prediction: Prediction) -> int | None:
        """Decode up to the next id, of which the prediction is, and return it.

        Returns None at the end of the block. Raises `DamagedFileError`.
        """
        while len(self._data) < self._block.size:
            if self._read(self._kinds) == _TOKEN:
                token = self._token(prediction)
                self._add(token)
                return token if len(self._data) < self._block.size else None
            self._add(~self._read(self._literals))
        return None

    def finish(self, check_scores: bool) -> bytes:
        """Return the block's bytes. Raises `DamagedFileError`, or `DifferentBitsError`.

        check_scores: compare the scores, too, not only what was decoded by them.
        """
        data = bytes(self._data)
        if checksum(data) != self._block.checksum:
            raise DamagedFileError(
                "a block has another checksum: the file is damaged, or the network computed other "
                "bits than when the file was made"
            )
        if check_scores and self._scores.to_bytes(CHECKSUM_BYTES) != self._block.scores:
            raise DifferentBitsError(
                "the file is whole, but the network computed other bits of its scores than when "
                "the file was made, which breaks a guarantee of sruserve: report it; --any-build "
                "decompresses the file all the same"
            )
        return data

    def _read(self, counts: Counts) -> int:
        symbol = counts.find(self._coder.target(counts.total))
        low, count, _ = counts.interval(symbol)
        self._coder.consume(low, count)
        counts.add(symbol)
        return symbol

    def _token(self, prediction: Prediction) -> int:
        self._scores = crc32(prediction.scores.data, self._scores)
        cumulative = prediction.frequencies
        target = self._coder.target(int(cumulative[-1]))
        token = int(cumulative.searchsorted(target, "right")) - 1
        low = int(cumulative[token])
        self._coder.consume(low, int(cumulative[token + 1]) - low)
        return token

    def _add(self, symbol: int) -> None:
        piece = self._speller.spell(symbol)
        if not piece or len(self._data) + len(piece) > self._block.size:
            raise DamagedFileError("the file is damaged: a block has other bytes than it should")
        self._data += piece
