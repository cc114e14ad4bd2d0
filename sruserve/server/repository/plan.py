"""Which versions of a model shall be served: what all workers of a server agree on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sruserve.model.versions import hidden_versions, versions
from sruserve.server.repository.served import Served
from sruserve.server.repository.split import read_split
from sruserve.server.repository.versions import Versions
from sruserve.server.settings import SettingsError


@dataclass(frozen=True, slots=True)
class Plan:
    """The versions of one model.

    versions: number and weights of each, in the order of loading; empty weights: any. None: the
        model is not served.
    current: the number of the version that new requests get.
    split: the weights of versions that divide new requests; empty: none.
    reason: why versions end that are not in the plan, for the log and the metrics.
    """

    versions: tuple[tuple[str, str], ...] = ()
    current: str = ""
    split: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    @classmethod
    def of(cls, versions: Versions | None, reason: str = "") -> "Plan":
        """What is served now."""
        if versions is None:
            return cls(reason=reason)
        split = versions.split.weights if versions.split is not None else {}
        return cls(
            tuple(map(pair_of, versions.all)),
            versions.current.version,
            {served.version: weight for served, weight in split.items()},
            reason,
        )

    @property
    def is_first(self) -> bool:
        """Whether it was made of the folders alone, and nothing was loaded for it yet."""
        return not any(weights for _, weights in self.versions)

    def keeps(self, served: Served, versions: Versions) -> bool:
        """Whether one of the versions here is in the plan.

        A worker that has started after a change of the files may have other weights under a number.
        """
        if pair_of(served) in self.versions:
            return True
        exact = {each.version for each in versions.all if pair_of(each) in self.versions}
        return served.version not in exact and served.version in dict(self.versions)

    def without(self, served: Served) -> "Plan":
        """The plan without one of several versions."""
        rest = tuple(each for each in self.versions if each != pair_of(served))
        split = {
            number: weight for number, weight in self.split.items() if number != served.version
        }
        numbers = [number for number, _ in rest]
        current = self.current if self.current in numbers else max(numbers, key=int)
        return replace(self, versions=rest, current=current, split=split)


def pair_of(served: Served) -> tuple[str, str]:
    """The number and the weights of a version."""
    return served.version, served.weights


def newest_and_split(folder: Path, max_versions: int) -> tuple[str, Mapping[str, int]]:
    """The newest version in a model's folder, and its split; raises `SettingsError`."""
    if hidden := hidden_versions(folder):
        raise SettingsError(
            f"{folder} is itself a model folder, so folders in it such as {hidden[-1]} would not "
            "be served: move its own config, weights and vocabulary into a folder with a number"
        )
    numbers, split = list(versions(folder)), read_split(folder)
    if not numbers:
        raise SettingsError(f"{folder} holds no model any more: was it moved or removed?")
    if (needed := len({numbers[-1], *split})) > max_versions:
        raise SettingsError(
            f"{folder}: the split needs {needed} versions, over SRUSERVE_MODEL_VERSIONS="
            f"{max_versions}"
        )
    if absent := [number for number in split if number not in numbers]:
        raise SettingsError(
            f"{folder}: the split names version {absent[0]}, and there is no such folder"
        )
    return numbers[-1], split


def plan_at_start(folder: Path, max_versions: int) -> Plan:
    """The newest versions of a model's folder, with those of its split; raises `SettingsError`."""
    newest, split = newest_and_split(folder, max_versions)
    numbers = [number for number in versions(folder) if number not in (newest, *split)]
    room = max_versions - len({newest, *split})
    chosen = sorted({*(numbers[-room:] if room else ()), *split, newest}, key=int)
    order = [*(number for number in chosen if number != newest), newest]
    return Plan(tuple((number, "") for number in order), newest, split)
