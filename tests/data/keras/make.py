"""Write the models of this folder with Keras itself, and its answers in answers.safetensors.

Run once, where Keras 3, h5py and torch are installed: KERAS_BACKEND=torch python make.py. The
weights are random, so that none is 0 or 1, as a new model's biases and norms are.
"""

from pathlib import Path

import keras
import numpy as np
from keras import layers as kl
from safetensors.numpy import save_file

HERE = Path(__file__).parent
RANDOM = np.random.default_rng(7)


def sequential(*layers: kl.Layer) -> keras.Model:
    return keras.Sequential(list(layers))


def functional(*layers: kl.Layer) -> keras.Model:
    x = start = layers[0]
    for layer in layers[1:]:
        x = layer(x)
    return keras.Model(start, x)


def models() -> dict[str, keras.Model]:
    ids, features = kl.Input((None,), dtype="int32"), kl.Input((None, 3))
    return {
        "classifier": functional(
            ids,
            kl.Embedding(20, 6, mask_zero=True),
            kl.Bidirectional(kl.LSTM(4, return_sequences=True)),
            kl.Dropout(0.3),
            kl.BatchNormalization(),
            kl.Bidirectional(kl.LSTM(3)),
            kl.BatchNormalization(),
            kl.Dense(5, activation="relu"),
            kl.Dense(3, activation="softmax"),
        ),
        "binary": sequential(
            kl.Input((None,), dtype="int32"),
            kl.Embedding(20, 6),
            kl.Bidirectional(kl.GRU(4, return_sequences=True), merge_mode="sum"),
            kl.Bidirectional(kl.GRU(3, return_sequences=True)),
            kl.GlobalMaxPooling1D(),
            kl.Dense(1, activation="sigmoid"),
        ),
        "forecaster": sequential(
            kl.Input((12, 3)),
            kl.Normalization(mean=[1.0, 2.0, -1.0], variance=[4.0, 9.0, 0.5]),
            kl.LSTM(5, return_sequences=True),
            kl.LSTM(4),
            kl.LayerNormalization(),
            kl.Dense(6, activation="gelu"),
            kl.Dropout(0.5),
            kl.Dense(2),
        ),
        "tagger": sequential(
            kl.Input((None,), dtype="int32"),
            kl.Embedding(20, 6),
            kl.Bidirectional(kl.LSTM(4, return_sequences=True)),
            kl.LSTM(3, return_sequences=True, use_bias=False),
            kl.TimeDistributed(kl.Dense(5)),
            kl.Activation("softmax"),
        ),
        "stateful": keras.Sequential(
            [
                kl.Input(batch_shape=(1, None, 3)),
                kl.Dense(4, activation="leaky_relu"),
                kl.GRU(5, return_sequences=True, stateful=True),
                kl.GRU(4, return_sequences=True, stateful=True),
                kl.Dense(2),
            ]
        ),
        "before": functional(
            features,
            kl.Rescaling(0.5, 0.1),
            kl.GRU(5, reset_after=False, return_sequences=True),
            kl.GRU(4, reset_after=False, return_sequences=True),
            kl.GlobalAveragePooling1D(),
            kl.Dense(3),
            kl.ELU(alpha=0.7),
            kl.Dense(2, activation="tanh"),
        ),
        "simple": functional(
            features,
            kl.SimpleRNN(5, activation="relu", return_sequences=True),
            kl.SimpleRNN(4, activation="relu"),
            kl.Dense(3),
        ),
        "writer": sequential(
            kl.Input((None,), dtype="int32"),
            kl.Embedding(20, 6),
            kl.LSTM(7, return_sequences=True),
            kl.Dense(20, activation="softmax"),
        ),
        "bare": sequential(
            kl.Input((None, 3)),
            kl.LSTM(5, return_sequences=True),
            kl.LSTM(4, return_sequences=True),
        ),
    }


def main() -> None:
    answers: dict[str, np.ndarray] = {}
    for name, model in models().items():
        weights = [RANDOM.normal(0, 0.5, w.shape).astype(np.float32) for w in model.get_weights()]
        for path, weight in zip([w.path for w in model.weights], weights, strict=True):
            if "variance" in path:
                np.abs(weight, out=weight)
        model.set_weights(weights)
        model.save(HERE / f"{name}.keras")
        if name in ("before", "classifier", "forecaster"):
            model.save(HERE / f"{name}.h5")
        shape = (1, 12) if model.inputs[0].dtype == "int32" else (1, 12, 3)
        if len(shape) == 2:
            x = RANDOM.integers(1, 20, shape).astype(np.int32)
        else:
            x = RANDOM.normal(0, 1, shape).astype(np.float32)
        answers |= {f"{name}.x": x[0], f"{name}.y": np.asarray(model.predict(x, verbose=0))[0]}
    save_file(answers, HERE / "answers.safetensors")


if __name__ == "__main__":
    main()
