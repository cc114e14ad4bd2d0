"""The task of each kind of model with tensors as inputs and outputs."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sruserve.server.kserve.datatypes import BYTES, number_tensor, text_tensor
from sruserve.server.kserve.messages import Tensor
from sruserve.server.kserve.signature import Signature, Spec
from sruserve.server.kserve.sources import source
from sruserve.server.offload import offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.per_input import PerInputTask, Results
from sruserve.server.tasks.regress import regression_of
from sruserve.server.tasks.requests import ModelRequest


class TensorTask:
    """The task of one model.

    fields: the field of a request under `/v1` for each input tensor.
    options: the fields that parameters may set.
    """

    fields: ClassVar[Mapping[str, str]] = {"text": "input", "input_ids": "input"}
    options: ClassVar[Sequence[str]] = ()
    schema: type[ModelRequest]
    signature: Signature

    def check_fields(self, served: Any, fields: Mapping[str, Any]) -> None:
        """Raise `CannotStream` for a field of states that the model does not take."""

    async def run(
        self, caller: Caller, served: Any, request: Any, cost: int
    ) -> tuple[list[Tensor], str | None]:
        """The outputs, and the end state if it is returned."""
        raise NotImplementedError

    def begin_step(self, request: Any, view: StreamView) -> None:
        """Prepare a request to continue a stream."""


class TextTask(TensorTask):
    """A task with a result for each input.

    max_batch_size: inputs in a batch.
    """

    def __init__(self, served: ServedModel, task: PerInputTask, max_batch_size: int) -> None:
        self.schema = task.schema
        self._task = task
        self._labels = served.labels
        input_spec = source(served.model, "text", "input_ids")
        self._texts = input_spec.datatype == BYTES
        self.signature = self._signature(served, input_spec, max_batch_size if self._texts else 0)

    async def run(
        self, caller: Caller, served: ServedModel, request: Any, cost: int
    ) -> tuple[list[Tensor], str | None]:
        with await self._task.run(caller, request, served, cost) as results:
            return await offload(results.large, self._tensors, served, results)

    def _tensors(self, served: ServedModel, results: Results) -> tuple[list[Tensor], str | None]:
        descriptions = [
            self._task.describe(served, item, result) for item, result in results.results
        ]
        return self._outputs(descriptions), descriptions[0]["state"]

    def _signature(self, served: ServedModel, input_spec: Spec, max_batch_size: int) -> Signature:
        raise NotImplementedError

    def _outputs(self, descriptions: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """The tensors of results, which are in the form of `/v1`."""
        raise NotImplementedError


class Classify(TextTask):
    """Labels. Before a stream's first label, they are empty and their scores are NaN."""

    def _signature(self, served: ServedModel, input_spec: Spec, max_batch_size: int) -> Signature:
        outputs = (
            Spec("label", BYTES, (1,)),
            Spec("score", "FP32", (1,)),
            Spec("scores", "FP32", (len(served.labels),)),
        )
        return Signature((input_spec,), outputs, max_batch_size)

    def _outputs(self, descriptions: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        batch = (len(descriptions),) if self.signature.max_batch_size else ()
        none = dict.fromkeys(self._labels)
        scores = [list((description["scores"] or none).values()) for description in descriptions]
        return [
            text_tensor(
                "label", (*batch, 1), [description["label"] or "" for description in descriptions]
            ),
            number_tensor(
                "score", "FP32", (*batch, 1), [description["score"] for description in descriptions]
            ),
            number_tensor("scores", "FP32", (*batch, len(self._labels)), scores),
        ]


class Compare(Classify):
    """Labels of pairs."""

    fields: ClassVar[Mapping[str, str]] = {
        **Classify.fields, "pair": "pair", "pair_ids": "pair",
    }  # fmt: skip

    def _signature(self, served: ServedModel, input_spec: Spec, max_batch_size: int) -> Signature:
        base = super()._signature(served, input_spec, max_batch_size)
        return Signature(
            (input_spec, source(served.model, "pair", "pair_ids")), base.outputs, max_batch_size
        )


class Tag(TextTask):
    """A label for every step of one input, and the labels' spans."""

    def _signature(self, served: ServedModel, input_spec: Spec, max_batch_size: int) -> Signature:
        del max_batch_size  # inputs differ in their steps, so there are no batches
        decides = served.model.network.crf is not None
        pending = (Spec("pending", "INT64", (1,)),) if decides else ()
        places = (Spec("starts", "INT64", (-1,)), Spec("ends", "INT64", (-1,)))
        outputs = (
            Spec("labels", BYTES, (-1,)),
            Spec("scores", "FP32", (-1,)),
            *(places if self._texts else ()),
            Spec("span_labels", BYTES, (-1,)),
            Spec("span_starts", "INT64", (-1,)),
            Spec("span_ends", "INT64", (-1,)),
            Spec("span_scores", "FP64", (-1,)),  # means of `scores`
            Spec("span_continued", "BOOL", (-1,)),
            *pending,  # steps so far whose labels a CRF has left open
        )
        return Signature((input_spec,), outputs, 0)

    def _outputs(self, descriptions: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        tokens, spans = descriptions[0]["tokens"], descriptions[0]["spans"]
        columns = {
            "labels": (tokens, "label"),
            "scores": (tokens, "score"),
            "starts": (tokens, "start"),
            "ends": (tokens, "end"),
            "span_labels": (spans, "label"),
            "span_starts": (spans, "start"),
            "span_ends": (spans, "end"),
            "span_scores": (spans, "score"),
            "span_continued": (spans, "continued"),
            "pending": (descriptions, "pending"),
        }
        tensors = []
        for spec in self.signature.outputs:
            entries, key = columns[spec.name]
            values, shape = [entry[key] for entry in entries], (len(entries),)
            if spec.datatype == BYTES:
                tensors.append(text_tensor(spec.name, shape, values))
            else:
                tensors.append(number_tensor(spec.name, spec.datatype, shape, values))
        return tensors


class Regress(TextTask):
    """Values of each input; of every step, or of steps ahead, of one input."""

    options: ClassVar[Sequence[str]] = ("steps_ahead",)

    def _signature(self, served: ServedModel, input_spec: Spec, max_batch_size: int) -> Signature:
        regression = regression_of(served)
        outputs, every = regression.outputs, regression.steps == "every"
        specs = [Spec("values", "FP32", (-1, outputs) if every else (outputs,))]
        if regression.forecasts:
            specs.append(Spec("ahead", "FP32", (-1, outputs)))
        if every or regression.forecasts:
            max_batch_size = 0  # the numbers of steps differ
        return Signature((input_spec,), tuple(specs), max_batch_size)

    def _tensors(self, served: ServedModel, results: Results) -> tuple[list[Tensor], str | None]:
        regression, rows = regression_of(served), [result for _, result in results.results]
        values = rows[0].every
        if values is None:
            nothing = np.full(regression.outputs, np.nan, np.float32)
            values = np.stack([nothing if row.values is None else row.values for row in rows])
            values = values if self.signature.max_batch_size else values[0]
        tensors = [number_tensor("values", "FP32", values.shape, values)]
        if regression.forecasts:
            none = np.zeros((0, regression.outputs), np.float32)
            ahead = none if rows[0].ahead is None else rows[0].ahead
            tensors.append(number_tensor("ahead", "FP32", ahead.shape, ahead))
        return tensors, served.seal_state(rows[0].state)


class Encode(TextTask):
    """The outputs of a network without a head for every step of one input."""

    def _signature(self, served: ServedModel, input_spec: Spec, max_batch_size: int) -> Signature:
        del max_batch_size
        width = served.model.config.rnn.output_size
        return Signature((input_spec,), (Spec("outputs", "FP32", (-1, width)),), 0)

    def _tensors(self, served: ServedModel, results: Results) -> tuple[list[Tensor], str | None]:
        (_, result), = results.results  # fmt: skip
        values = result.outputs
        return [number_tensor("outputs", "FP32", values.shape, values)], served.seal_state(
            result.state
        )
