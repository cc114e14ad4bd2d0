"""Write the checkpoints of this folder with TensorFlow, and what its own graph answers.

Run once, where tensorflow-cpu 2.21.0 and safetensors are installed, with a checkout of bzhangGo/lrn
(26e6f6f): python make.py CHECKOUT. The graphs are those of its doc/code/model.py and
nli/code/model.py, run by tensorflow.compat.v1; the weights are random. None of its code is here.
"""

import json
import os
import shutil
import sys
import types
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from safetensors.numpy import save_file

HERE = Path(__file__).parent
WORDS = ["the", "film", "is", "dull", "a" * 25, "ab" * 20, "é"]  # 25 characters is the limit
LENGTHS = np.array([5, 1, 9, 3])


class Vocab:
    """As the repository's: padding, the unknown word and the end come first."""

    pretrained_embedding = None

    def __init__(self, entries: str | list[str]) -> None:
        self.entries = ["<pad>", "<unk>", "<eos>", *dict.fromkeys(entries)]

    def size(self) -> int:
        return len(self.entries)

    def ids(self, entries: str) -> list[int]:
        return [self.entries.index(e) if e in self.entries else 1 for e in entries]


@dataclass
class Params:
    """What the graphs read of the repository's HParams."""

    cell: str = "lrn"
    hidden_size: int = 3
    embed_size: int = 4
    char_embed_size: int = 2
    dropout: float = 0.1
    word_dropout: float = 0.1
    label_smooth: float = 0.1
    weight_decay: float = 0.0
    ema_decay: float = 0.9999
    max_w_len: int = 25
    num_heads: int = 1
    layer_norm: bool = False
    use_char: bool = False
    enable_bert: bool = False
    enable_hierarchy: bool = False
    lower: bool = False
    model_name: str = "InferNet"
    task: str = "amafull"
    pretrain_word_embedding_file: str = "none"
    label_size: int = 3
    word_vocab: Vocab = field(default_factory=lambda: Vocab(WORDS))
    char_vocab: Vocab = field(default_factory=lambda: Vocab("thefilmsdulab"))

    def values(self) -> dict[str, Any]:
        return vars(self)

    def to_json(self) -> str:
        """As HParams writes them: the vocabularies and the number of labels are not among them."""
        others = ("word_vocab", "char_vocab", "label_size")
        return json.dumps({k: v for k, v in vars(self).items() if k not in others})


def make(name: str, model: Any, params: Params) -> None:
    """Save one checkpoint as doc/code/utils/saver.py does, and answer as its evaluation."""
    rng = np.random.default_rng(len(name))
    ids = rng.integers(3, params.word_vocab.size(), (len(LENGTHS), max(LENGTHS)))
    ids *= np.arange(max(LENGTHS)) < LENGTHS[:, None]
    chars = np.zeros((*ids.shape, params.max_w_len), int)
    for place in np.argwhere(ids):
        spelt = params.char_vocab.ids(params.word_vocab.entries[ids[tuple(place)]])
        chars[tuple(place)][: len(spelt)] = spelt[: params.max_w_len]
    folder = Path(name)
    shutil.rmtree(folder, ignore_errors=True)
    with tf.Graph().as_default(), tf.Session() as session:
        t, c, label = (tf.placeholder(tf.int32, [None] * n) for n in (2, 3, 1))
        step = tf.train.get_or_create_global_step()
        if name == "pairs":
            model.infer_fn(replace(params), {"p": t, "h": t, "l": label})
        else:
            _, probabilities = model.infer_fn(replace(params), {"t": t, "c": c, "l": label})
            (logits,) = probabilities.op.inputs
        trained = tf.trainable_variables()
        saved = [*trained, step]
        ema = tf.train.ExponentialMovingAverage(0.9999)
        if params.ema_decay > 0:
            ema.apply(trained)
            saved += [ema.average(variable) for variable in trained]
        if name == "lrn":  # everything that a training run saves
            loss = tf.add_n([tf.reduce_sum(variable) for variable in trained])
            tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
            saved = tf.global_variables()
        session.run(tf.global_variables_initializer())
        for variable in saved:
            if variable.dtype.base_dtype == tf.float32:
                variable.load(rng.normal(0, 0.7, variable.shape).astype("f4"), session)
        tf.train.Saver().save(session, f"{name}/model", global_step=5000)
        (folder / "model-5000.meta").unlink()
        (folder / "param.json").write_text(params.to_json() + "\n")
        if name in ("pairs", "normalised", "sentences"):  # these are refused
            return
        if params.ema_decay > 0:
            session.run([tf.assign(v, ema.average(v).read_value()) for v in trained])
        feed = {t: ids, c: chars, label: np.zeros(len(ids), int)}
        case = {
            "tokens": ids.T.astype("i4"),
            "lengths": LENGTHS.astype("i4"),
            "logits": session.run(logits, feed),
        }
    if params.use_char:
        for kind, vocab in (("word", params.word_vocab), ("char", params.char_vocab)):
            (folder / f"vocab.{kind}").write_text("\n".join(vocab.entries) + "\n")
    save_file({k: np.ascontiguousarray(v) for k, v in case.items()}, folder / "case.safetensors")


def graph(code: Path) -> Any:
    """The module `model` of a part of the repository, which has modules of common names."""
    for name in ("model", "func", "rnns", "utils"):
        for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[module]
    sys.path.insert(0, str(code))
    return import_module("model")


def main() -> None:
    checkout = Path(sys.argv[1]).resolve()
    sys.modules["tensorflow"] = tf
    sys.modules["bert"] = types.ModuleType("bert")  # not used, and for an older TensorFlow
    tf.disable_eager_execution()
    os.chdir(HERE)
    model = graph(checkout / "doc/code")
    for cell in ("lrn", "atr", "gru", "lstm", "sru"):
        make(cell, model, Params(cell))
    make("characters", model, Params(use_char=True))
    make("raw", model, Params(ema_decay=-1.0))
    make("normalised", model, Params(layer_norm=True))
    make("sentences", model, Params(enable_hierarchy=True))
    make("pairs", graph(checkout / "nli/code"), Params(task="snli"))


if __name__ == "__main__":
    main()
