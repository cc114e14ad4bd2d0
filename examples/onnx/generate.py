"""Stream a text from `step.onnx`, with numpy and onnxruntime alone; a seed gives the server's text.

python generate.py step.onnx --prompt ROMEO: --seed 7
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # sent from version 1.29 on

import onnxruntime


def uniform(seed: int, choice: int, position: int) -> float:
    """Philox4x32-10 (Salmon et al. 2011): the number in [0, 1) for the token at a position."""
    low = 0xFFFFFFFF
    c, k0, k1 = [position & low, position >> 32, choice, 0], seed & low, seed >> 32 & low
    for _ in range(10):
        left, right = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [right >> 32 ^ c[1] ^ k0, right & low, left >> 32 ^ c[3] ^ k1, left & low]
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return ((c[0] >> 5 << 26) + (c[1] >> 6)) / 2**53


def sample(logits: np.ndarray, temperature: float, number: float) -> int:
    """The inverse CDF at a number in [0, 1), in id order; temperature 0 takes the likeliest id."""
    if temperature == 0:
        return int(logits.argmax())
    scores = np.exp((logits - logits.max()) / np.float32(temperature))
    cdf = np.cumsum(scores / scores.sum(), dtype=np.float64)
    return min(int((cdf <= number * cdf[-1]).sum()), len(cdf) - 1)


parser = argparse.ArgumentParser()
parser.add_argument("model", help="step.onnx of a language model that writes bytes")
parser.add_argument("--prompt", default="")
parser.add_argument("--state", help="file of `sruserve export state`, to continue from")
parser.add_argument("--max-tokens", type=int, default=200)
parser.add_argument("--temperature", type=float, default=1.0)
parser.add_argument("--seed", type=int, help="default: the state's own, or 0")
options = parser.parse_args()

session = onnxruntime.InferenceSession(options.model)
properties = session.get_modelmeta().custom_metadata_map
vocabulary = json.loads(json.loads(properties["sruserve.vocabulary"])["bytes.json"])
ids = [vocabulary.index(byte) for byte in options.prompt.encode()]
state = np.zeros((1, session.get_inputs()[1].shape[1]), np.float32)
seed, choice, position = options.seed or 0, 0, 0
if options.state:
    saved = json.loads(Path(options.state).read_text())
    assert saved["digest"] == properties["sruserve.digest"], "the state is another model's"
    state[0], ids, position = saved["row"], saved["pending"] + ids, saved["steps"]
    if options.seed is None:
        seed, choice = int(saved["seed"]), saved["choice"]
    os.write(1, bytes(saved["unsent"]))
if not ids:
    parser.error("give a --prompt or a --state")
for _ in range(options.max_tokens):
    for token in ids:  # the prompt, then the last token
        logits, state = session.run(None, {"ids": np.array([token]), "state": state})
        position += 1
    ids = [sample(logits[0], options.temperature, uniform(seed, choice, position))]
    os.write(1, bytes([vocabulary[ids[0]]]))
