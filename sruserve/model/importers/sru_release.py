"""How the releases of `sru` interpret the same tensors and constructor arguments."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Options
from sruserve.model.importers.options import CORRECT, flag, shown


class Era(Enum):
    """Releases that compute the same results."""

    Y2017 = "2017"
    Y2018 = "2018"
    FIRST = "2.0.0 to 2.1.4"
    SECOND = "2.1.5 to 2.1.7"
    THIRD = "2.1.8 to 2.7"
    FOURTH = "3.0.0.dev"


@dataclass(frozen=True)
class Maths:
    """The parts of the maths that neither shapes nor names show.

    scales: for each layer, the factor on the input as highway; 1 if the input is not the highway.
    """

    activation: str
    scales: tuple[float, ...]

    def __str__(self) -> str:
        scale = next((scale for scale in self.scales if scale != 1), 1)
        return f"{self.activation}, highway times {scale:.6g}"


def era_of(release: object) -> Era:
    """Return the era of a release such as "2.1.4"; "2017" and "2018" are the code before 2.0."""
    numbers = re.fullmatch(r"([23])\.(\d{1,3})(?:\.(\d{1,3}))?([.-]?\w{1,12})?", str(release))
    if str(release) in ("2017", "2018"):
        return Era(str(release))
    if not isinstance(release, str) or numbers is None:
        raise OptionError(
            f"--options: release is {shown(release)}; it must be a version such as "
            '"2.6.0" or "3.0.0.dev6", or "2017" or "2018" for code from before 2.0'
        )
    if numbers[1] == "3":
        return Era.FOURTH
    version = (int(numbers[2]), int(numbers[3] or 0))
    return Era.FIRST if version < (1, 5) else Era.SECOND if version < (1, 8) else Era.THIRD


def eras_of(names: Collection[str]) -> tuple[Era, ...]:
    """Return the eras whose layers have such names (and `ln_lst`, `input_to_hidden`)."""
    if any(name.startswith("transform_module.") for name in names):
        return (Era.FOURTH,)
    old = bool({"gain", "ln_lst"} & set(names))
    if "weight_c" not in names:
        return (Era.Y2018,) if old else (Era.Y2017, Era.Y2018)
    if old:
        return (Era.FIRST, Era.SECOND)
    if "input_to_hidden" in names or any(name.startswith("layer_norm.") for name in names):
        return (Era.THIRD,)
    return (Era.FIRST, Era.SECOND, Era.THIRD)


def maths_of(era: Era, options: Options, stored: Sequence[float | None]) -> Maths:
    """Return the maths of an era.

    stored: for each layer, `scale_x` if the highway is the input (None: not saved), otherwise 1.
    """
    early = era in (Era.Y2017, Era.Y2018)
    # A module created without scaling stores 1. If nothing is stored, the option decides.
    rescale = flag(options, "rescale", True)
    if era is Era.Y2017:
        scales = tuple(1.0 for _ in stored)
    elif era is Era.Y2018:  # scale_x was a Python float, so it was never saved
        scale = math.sqrt(1 + 2 * math.exp(_bias(options))) if rescale else 1.0
        scales = tuple(scale if stored_scale is None else 1.0 for stored_scale in stored)
    elif era is Era.FIRST:
        scales = tuple(1.0 if stored_scale is None else stored_scale for stored_scale in stored)
    else:
        scales = tuple(
            stored_scale if rescale and stored_scale is not None else 1.0 for stored_scale in stored
        )
    activations = [name for name in ("tanh", "relu", "selu") if flag(options, f"use_{name}", False)]
    if early and flag(options, "use_tanh", True):
        activations.insert(0, "tanh")
    if era is Era.Y2017 and "relu" in activations:
        activations = ["relu"]
    if len(set(activations)) > 1 and not early:
        raise OptionError("--options: use_tanh, use_relu and use_selu exclude each other: pass one")
    return Maths(activations[0] if activations else "identity", scales)


def stated_eras(possible: tuple[Era, ...], options: Options) -> tuple[Era, ...]:
    """Return the era of the option `release`, or all possible ones without that option.

    Raises `CheckpointError` if the weights cannot be of that release.
    """
    if "release" not in options:
        return possible
    era = era_of(options["release"])
    if era not in possible:
        written = ", ".join(era.value for era in possible)
        raise CheckpointError(
            f"option release is of {era.value}, but the weights are of {written}: {CORRECT}"
        )
    return (era,)


def settle(possible: tuple[Era, ...], options: Options, stored: Sequence[float | None]) -> Maths:
    """Return the maths; raise `OptionError` if it depends on the release and none is stated."""
    maths_of_eras = {era: maths_of(era, options, stored) for era in possible}
    if len(set(maths_of_eras.values())) > 1:
        each = "; ".join(f"{era.value}: {maths}" for era, maths in maths_of_eras.items())
        raise OptionError(
            f'"release" of sru is not stored in a state dict: pass it in --options, because the '
            f"releases compute different results from these weights and options ({each})"
        )
    return maths_of_eras[possible[0]]


def _bias(options: Options) -> float:
    value = options.get("highway_bias", 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 80:
        raise OptionError(
            f"--options: highway_bias is {shown(value)}; it must be a number between -80 and 80"
        )
    return value
