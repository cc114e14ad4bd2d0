"""The families of recurrent layers: one file for each, and this list of them."""

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.cells.stack import StackConfig

FAMILIES: dict[str, type[StackConfig]] = {config.family: config for config in (SRUConfig,)}
