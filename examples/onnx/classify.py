"""Label a text that comes in chunks, with `model.onnx`, onnxruntime, numpy and tokenizers.

python classify.py model.onnx "How far is it from Den" "ver to Aspen?"
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # sent from version 1.29 on

import onnxruntime
from tokenizers import Tokenizer

parser = argparse.ArgumentParser()
parser.add_argument("model", help="model.onnx of a classifier with a vocabulary of words")
parser.add_argument("chunks", nargs="+", help="pieces of one text, which may end inside a word")
parser.add_argument("--state", help="file of `sruserve export state`, to continue from")
options = parser.parse_args()

session = onnxruntime.InferenceSession(options.model)
properties = session.get_modelmeta().custom_metadata_map
labels = json.loads(properties["sruserve.labels"])
tokenizer = Tokenizer.from_str(json.loads(properties["sruserve.vocabulary"])["tokenizer.json"])
state = np.zeros((1, session.get_inputs()[2].shape[1]), np.float32)
word = ""  # the end of the text so far, until a space shows that the word is whole
if options.state:
    saved = json.loads(Path(options.state).read_text())
    assert saved["digest"] == properties["sruserve.digest"], "the state is another model's"
    state[0], word = saved["row"], saved["word"]
for chunk in [*options.chunks, " "]:
    text = word + chunk
    end = text.rfind(" ") + 1
    ids, word = tokenizer.encode(text[:end]).ids, text[end:]
    if not ids:
        continue
    inputs = {"ids": np.array([ids]), "lengths": np.array([len(ids)]), "state": state}
    _, scores, state = session.run(None, inputs)
    best = int(scores.argmax())
    print(f"{labels[best]} {scores[0, best]:.4f} after {text[:end]!r}", flush=True)
