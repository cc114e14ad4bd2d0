"""A regressor's outputs from the options of an import."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from sruserve.model.config import explain
from sruserve.model.errors import OptionError
from sruserve.model.heads.regression import Regression

OPTIONS = ("units", "quantiles", "steps", "forecasts")


def read_regression(
    options: Mapping[str, Any], names: Sequence[str] | None, outputs: int
) -> Regression:
    """Return the outputs of a head with `outputs` scores, or raise `OptionError`.

    options: those in `OPTIONS`. names: of the values; None numbers them.
    """
    quantiles = options.get("quantiles") or ()
    each = max(1, len(quantiles)) if isinstance(quantiles, (list, tuple)) else 1
    values = names if names is not None else [str(i) for i in range(max(1, outputs // each))]
    try:
        regression = Regression.model_validate({**options, "names": tuple(values)})
    except ValidationError as error:
        raise OptionError(f"--options, --labels: {explain(error)}") from error
    if regression.outputs != outputs:
        raise OptionError(
            f"--labels names {len(values)} values with {each} outputs each, but the head has "
            f"{outputs} outputs: name as many values as the head has"
        )
    return regression
