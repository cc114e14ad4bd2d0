"""The families of layers that remember a stream: one file each, and the list of all."""

from sruserve.model.cells.cnn import CNNConfig
from sruserve.model.cells.gated import ATRConfig, GRUConfig, LSTMConfig, RNNConfig
from sruserve.model.cells.lrn import LRNConfig
from sruserve.model.cells.qrnn import QRNNConfig
from sruserve.model.cells.sru import SRUConfig
from sruserve.model.cells.srupp import SRUppConfig
from sruserve.model.cells.stack import StackConfig

_CONFIGS: tuple[type[StackConfig], ...] = (
    SRUConfig,
    SRUppConfig,
    LRNConfig,
    QRNNConfig,
    LSTMConfig,
    GRUConfig,
    RNNConfig,
    ATRConfig,
    CNNConfig,
)
FAMILIES = {config.family: config for config in _CONFIGS}
