"""The state rows of all streams, as one input and one output of a graph."""

from sruserve.export.onnx.graph import Graph, Value


class StateRows:
    """Reads columns of the state rows (batch, width), and collects the columns of the new ones.

    rows: the input; its layout is that of the model's state rows everywhere.
    """

    def __init__(self, graph: Graph, rows: Value) -> None:
        self._graph, self._rows = graph, rows
        self._written: dict[int, tuple[int, Value]] = {}

    def read(self, column: int, width: int) -> Value:
        """Return the columns from `column` on, (batch, width)."""
        return self._graph.columns(self._rows, column, column + width)

    def write(self, column: int, width: int, value: Value) -> None:
        """Set the columns from `column` on to `value` (batch, width)."""
        assert column not in self._written
        self._written[column] = width, value

    def end(self, width: int) -> Value:
        """Return the new rows, (batch, width), of which every column has been written."""
        at, parts = 0, []
        for column, (size, value) in sorted(self._written.items()):
            assert column == at, f"columns {at} to {column} were not written"
            parts.append(value)
            at += size
        assert at == width, f"columns {at} to {width} were not written"
        return parts[0] if len(parts) == 1 else self._graph.op.Concat(*parts, axis=-1)
