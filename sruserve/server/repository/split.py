"""The split of a model's new requests among its versions, by weight."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from sruserve.model.errors import printable
from sruserve.model.files import read_regular
from sruserve.model.json_names import RepeatedName, load_json
from sruserve.server.repository.served import Served
from sruserve.server.settings import SettingsError

SPLIT_FILE = "split.json"
_LARGEST_FILE = 64 << 10  # in bytes
_MAX_VERSIONS, _MAX_WEIGHT = 64, 1_000_000
_Version = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}$")]
_Weight = Annotated[int, Field(strict=True, ge=0, le=_MAX_WEIGHT)]
_FILE = TypeAdapter(Annotated[dict[_Version, _Weight], Field(max_length=_MAX_VERSIONS)])


class Split:
    """Gives each version its share of requests, spread evenly (smooth weighted round robin).

    Of any requests in a row whose number is the sum of the weights, each version gets exactly its
    weight.

    weights: of each version; one of them is above 0.
    """

    def __init__(self, weights: Mapping[Served, int]) -> None:
        self._turns = dict.fromkeys(weights, 0)
        self.weights = dict(weights)
        self._total = sum(weights.values())

    def next(self) -> Served:
        """The version for the next request."""
        turns = self._turns
        for served, weight in self.weights.items():
            turns[served] += weight
        chosen = max(turns, key=turns.__getitem__)
        turns[chosen] -= self._total
        return chosen


def read_split(folder: Path) -> Mapping[str, int]:
    """The weights by version in a model's folder; empty: new requests get the newest version.

    Raises `SettingsError`, which names the file.
    """
    file = folder / SPLIT_FILE
    try:
        content = read_regular(file, _LARGEST_FILE)
        weights = _FILE.validate_json(content)
        load_json(content)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    except RepeatedName as repeated:
        raise SettingsError(f"{file} {repeated}: remove one of them") from None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"{printable(str(key))}: " for key in problem["loc"] if key != "[key]")
        raise SettingsError(
            f"{file} should be a JSON object of whole numbers by version, such as "
            f'{{"2": 90, "3": 10}}: {place}{problem["msg"]}'
        ) from None
    if weights and not any(weights.values()):
        raise SettingsError(f"{file}: one of the weights should be above 0")
    return weights
