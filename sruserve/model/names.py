"""Names of tasks and dtypes, for commands and settings that must not load torch."""

from typing import Literal

Task = Literal["classify", "pair", "tag", "regress", "generate", "encode"]
ImportTask = Literal["classify", "pair", "tag", "regress", "generate", "encode", "translate"]
DType = Literal["float32", "bfloat16", "float16"]
