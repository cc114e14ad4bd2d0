"""Words of a model's description that commands and settings know, too, without loading torch."""

from typing import Literal

Task = Literal["classify", "pair", "tag", "generate", "encode"]
DType = Literal["float32", "bfloat16", "float16"]
