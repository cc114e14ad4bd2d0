"""`sruserve.save`: its arguments, what it leaves as it was, and its examples in the docs."""

import copy
import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from typer.testing import CliRunner

import sruserve
from sruserve.cli import app
from sruserve.kernels import single
from sruserve.model.errors import FolderError, OptionError
from sruserve.model.folder import load_model
from sruserve.model.folder_files import CASE_FILE
from sruserve.model.heads.config import Pooling
from sruserve.tracing import save as save_file_module
from sruserve.tracing.errors import DifferentAnswers, TracingError
from tests import preloaded
from tests.model.text.trained_tokenizers import trained as trained_tokenizer
from tests.tracing.networks.features import Regressor
from tests.tracing.networks.network import FEATURES, WORDS
from tests.tracing.networks.poolings import ConcatPooling, FinalStates
from tests.tracing.networks.steps import CRF, CRFTagger, LanguageModel, Tagger
from tests.tracing.networks.words import LitSentiment, MultiLabel
from tests.tracing.refusals import Sine

_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
ENTRIES = ["<unk>", *(f"w{i}" for i in range(WORDS - 1))]


def test_the_examples_in_its_docstring_hold() -> None:
    result = doctest.testmod(save_file_module)
    assert result.attempted
    assert not result.failed


def programs() -> list[str]:
    docs = (Path(__file__).parents[2] / "docs/models.md").read_text()
    return re.findall(r"```py\n(.*?)```", docs, re.DOTALL)


def test_the_program_in_the_docs_saves_a_model(tmp_path: Path) -> None:
    (program,) = programs()
    done = preloaded.run("-c", program, environment=_ENVIRONMENT, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    model = load_model(tmp_path / "sentiment")
    assert model.labels == ("bad", "good")
    assert model.codec is not None
    assert len(program.splitlines()) <= 20


def test_importing_the_package_does_not_import_torch() -> None:
    program = "import sys, sruserve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_it_needs_no_extra_of_the_server(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('fastapi', 'uvicorn', 'cryptography', 'prometheus_client', 'websockets'):\n"
        "    sys.modules[name] = None\n"
        "import sruserve, torch\n"
        "from tests.tracing.networks.words import LitSentiment\n"
        f"sruserve.save(LitSentiment(), {str(tmp_path / 'model')!r}, 'classify')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert load_model(tmp_path / "model").config.task == "classify"


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(ENTRIES)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def _path(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(_tokenizer().to_str())
    return path


@pytest.mark.parametrize(
    "make",
    [
        _path,
        lambda tmp_path: str(_path(tmp_path)),
        lambda _: _tokenizer(),
        lambda _: ENTRIES,
        lambda _: {word: i for i, word in enumerate(ENTRIES)},
    ],
    ids=["a path", "a name", "a tokenizer", "a list", "a dict"],
)
def test_a_tokenizer_may_be_whatever_a_script_has(make: Any, tmp_path: Path) -> None:
    folder, tokenizer = tmp_path / "model", make(tmp_path)
    model = sruserve.save(LitSentiment(), folder, "classify", tokenizer=tokenizer, lowercase=False)
    assert model.codec is not None
    assert model.codec.encode("w3 w7 nothing")[0].tolist() == [4, 8, 0]


def test_a_tokenizer_with_what_its_file_does_not_hold_is_refused(tmp_path: Path) -> None:
    tokenizer = _tokenizer()
    tokenizer.encode_special_tokens = True
    with pytest.raises(OptionError, match="tokenizer: encode_special_tokens is set"):
        sruserve.save(LitSentiment(), tmp_path / "model", "classify", tokenizer=tokenizer)


@pytest.mark.parametrize("kind", ["byte level", "metaspace first", "unigram", "characters"])
def test_a_language_model_may_have_any_tokenizer(kind: str, tmp_path: Path) -> None:
    tokenizer = trained_tokenizer(kind)
    module = LanguageModel(words=tokenizer.get_vocab_size())
    model = sruserve.save(module, tmp_path / "model", "generate", tokenizer=tokenizer)
    assert model.codec is not None
    text = "how far is it"
    assert model.codec.encode(text)[0].tolist() == tokenizer.encode(text).ids


def test_single_characters_are_a_vocabulary_of_characters(tmp_path: Path) -> None:
    letters = ["<unk>", "a", "é", "日", " ", "\n"]
    module = LanguageModel(words=len(letters))
    model = sruserve.save(
        module, tmp_path / "model", "generate", tokenizer=letters, lowercase=False
    )
    assert model.codec is not None
    assert model.codec.encode("a 日\néx")[0].tolist() == [1, 4, 3, 5, 2, 0]


def test_a_vocabulary_without_capitals_warns_unless_the_script_states_their_treatment(
    tmp_path: Path,
) -> None:
    with pytest.warns(UserWarning, match="pass lowercase=True"):
        sruserve.save(LitSentiment(), tmp_path / "model", "classify", tokenizer=ENTRIES)
    model = sruserve.save(
        LitSentiment(), tmp_path / "model", "classify", tokenizer=ENTRIES, lowercase=True
    )
    assert model.codec is not None
    assert model.codec.encode("W3 w7")[0].tolist() == [4, 8]


def test_bytes_are_a_vocabulary(tmp_path: Path) -> None:
    own = bytes(range(WORDS))
    model = sruserve.save(LanguageModel(), tmp_path / "model", "generate", tokenizer=own)
    assert model.codec is not None
    assert model.codec.encode("\x03\x07")[0].tolist() == [3, 7]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"labels": ["a", "b"]}, "2 names for 3 outputs"),
        ({"labels": {"a": 2, "b": 1, "c": 0}}, "labels: list them in the order of the module's"),
        ({"labels": {"a"}}, "labels: list them in the order of the module's"),
        ({"labels": "abc"}, "labels: list them in the order of the module's"),
        ({"units": "abc"}, "units: list them in the order of the module's"),
        ({"pooling": "mean"}, "pooling is mean, but the module's is last: leave it out"),
        ({"tokenizer": ["ab", "cd"]}, "tokenizer has 2 entries, but the embedding has 30 rows"),
        ({"tokenizer": {"a": 1, "b": 2}}, "without gaps"),
        ({"names": ["a", "b", "c"]}, "names: for task regress only"),
        ({"examples": [torch.zeros(2, 3, dtype=torch.int64)]}, "without the batch"),
        ({"examples": [torch.zeros(0, dtype=torch.int64)]}, "without the batch"),
    ],
    ids=str,
)
def test_an_argument_that_does_not_fit_is_refused(
    options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError) as caught:
        sruserve.save(LitSentiment(), tmp_path / "model", "classify", **options)
    assert problem in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_several_poolings_may_be_stated(tmp_path: Path) -> None:
    stated: list[Pooling] = ["last", "max", "mean"]
    model = sruserve.save(ConcatPooling(), tmp_path / "model", "classify", pooling=stated)
    assert model.config.head.poolings == tuple(stated)
    with pytest.raises(OptionError, match="the module's is last and max and mean"):
        sruserve.save(ConcatPooling(), tmp_path / "other", "classify", pooling="max")


def test_an_activation_that_the_module_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the module computes sigmoid itself"):
        sruserve.save(MultiLabel(True), tmp_path / "model", "classify", activation="softmax")


@pytest.mark.parametrize(
    ("module", "task", "problem"),
    [
        (Tagger(), "classify", "returns a row for every step"),
        (LitSentiment(), "tag", "returns one row for an input"),
        (LitSentiment(), "generate", "returns one row|needs a score for each"),
        (FinalStates(), "encode", "returns one row"),
    ],
    ids=["classify", "tag", "generate", "encode"],
)
def test_a_task_that_is_not_the_modules_is_refused(
    module: nn.Module, task: Any, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(TracingError, match=problem):
        sruserve.save(module, tmp_path / "model", task)


class Stack(nn.Module):
    """Recurrent layers alone, over projected features."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.gru = nn.Linear(FEATURES, 4), nn.GRU(4, 6, 2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gru(self.project(x))[0]
        return out


def test_a_stack_without_a_head_is_for_task_encode(tmp_path: Path) -> None:
    module = Stack()
    model = sruserve.save(module, tmp_path / "model", "encode")
    assert model.config.width == FEATURES
    case = load_file(tmp_path / "model" / CASE_FILE)
    assert case["h"].shape == (33, 4, 12)


def test_examples_are_what_is_compared_and_saved(tmp_path: Path) -> None:
    examples = [list(range(5)), [3, 1]]
    sruserve.save(LitSentiment(), tmp_path / "model", "classify", examples=examples)
    case = load_file(tmp_path / "model" / CASE_FILE)
    assert case["tokens"].T.tolist() == [[0, 1, 2, 3, 4], [3, 1, 0, 0, 0]]
    assert case["lengths"].tolist() == [5, 2]


class Delayed(LitSentiment):
    """Does something else for an input that is neither of those that are recorded."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores if x.shape[1] < 20 else scores * 2


def test_answers_that_differ_leave_the_folder_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    before = sruserve.save(LitSentiment(), folder, "classify")
    with pytest.raises(DifferentAnswers, match="for the example of 33 steps"):
        sruserve.save(Delayed(), folder, "classify")
    assert load_model(folder).digest == before.digest
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


class Truncating(LitSentiment):
    """Cuts long inputs, by a rule that no short input shows."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 256:
            x = x[:, :256]
        return super().forward(x)


class CuttingTo(LitSentiment):
    """Cuts inputs to a length that only a comparison shows."""

    limit = 10_000

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, : min(x.size(1), self.limit)])


class LeavingOut(LitSentiment):
    """Computes with the number of steps before it compares; averages all that it reads."""

    def forward(self, x: Tensor) -> Tensor:
        read = x[:, max(0, 2 * x.shape[1] - 20_000) // 2 :]
        scores: Tensor = self.classifier(self.lstm(self.embedding(read))[0].mean(1))
        return scores


class CuttingUnseen(LitSentiment):
    """Cuts inputs by a number of steps that is no size of a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, : min(len(x[0]), 4096)])


class CuttingFar(CuttingTo):
    limit = 1_000_000


@pytest.mark.parametrize("module", [Truncating, CuttingTo, LeavingOut, CuttingUnseen])
def test_a_module_that_cuts_long_inputs_is_refused(
    module: type[LitSentiment], tmp_path: Path
) -> None:
    with pytest.raises(DifferentAnswers, match=r"for the example of \d+ steps"):
        sruserve.save(module(), tmp_path / "model", "classify")


def test_a_cut_that_is_too_long_to_compare_is_refused_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(TracingError, match=r"for 1,000,001 steps and more.* self\.limit"):
        sruserve.save(CuttingFar(), tmp_path / "model", "classify")


class Measuring(LitSentiment):
    """Computes and compares with its sizes, and cuts nothing."""

    def forward(self, x: Tensor) -> Tensor:
        batch, steps = x.shape
        if steps > sys.maxsize or steps == 0 or batch % 2 > 1 or 7 // steps < 0:
            raise ValueError
        self.seen = steps
        whole = x.reshape(steps * batch).view(batch, -1)[:, : max(steps, 1)]
        return super().forward(whole[: x.size(0) + 1 - 1])


def test_a_module_may_compute_with_its_sizes(tmp_path: Path) -> None:
    module = Measuring()
    sruserve.save(module, tmp_path / "model", "classify")
    assert type(copy.deepcopy(module).seen) is int


class Bounded(LitSentiment):
    """Refuses long inputs."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] <= 256
        return super().forward(x)


def test_a_module_that_refuses_long_inputs_may_be_saved(tmp_path: Path) -> None:
    sruserve.save(Bounded(), tmp_path / "model", "classify")


def test_a_refused_module_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    before = sruserve.save(LitSentiment(), folder, "classify")
    with pytest.raises(TracingError, match=r"torch\.sin"):
        sruserve.save(Sine(), folder, "classify")
    assert load_model(folder).digest == before.digest


def test_a_folder_that_is_no_model_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(FolderError, match="not a model folder"):
        sruserve.save(LitSentiment(), tmp_path, "classify")


def test_a_saved_model_may_be_replaced_by_another(tmp_path: Path) -> None:
    sruserve.save(LitSentiment(), tmp_path / "model", "classify")
    model = sruserve.save(Tagger(), tmp_path / "model", "tag")
    assert load_model(tmp_path / "model").digest == model.digest


def test_the_module_is_left_as_it_was(tmp_path: Path) -> None:
    module = Regressor().train()
    module.lstm.eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    forward = module.lstm.forward
    sruserve.save(module, tmp_path / "model", "regress", names=["a", "b"])
    assert module.training
    assert not module.lstm.training
    assert module.lstm.forward == forward
    assert "forward" not in module.lstm.__dict__
    assert torch.is_grad_enabled()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_a_module_in_another_dtype_is_saved_in_float32(tmp_path: Path) -> None:
    module = Regressor().double()
    sruserve.save(module, tmp_path / "model", "regress")
    assert module.mean.dtype is torch.float64
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_a_case_of_other_answers_does_not_agree(tmp_path: Path) -> None:
    from sruserve.model.verification.cases import Case
    from sruserve.model.verification.verify import verify

    model = sruserve.save(LitSentiment(), tmp_path / "model", "classify")
    case = load_file(tmp_path / "model" / CASE_FILE)
    case["probabilities"] = case["probabilities"].flip(1)
    save_file(case, tmp_path / "other.safetensors")
    assert max(each.largest for each in verify(model, Case(tmp_path / "other.safetensors"))) > 1e-3


def test_the_window_of_a_crf_is_chosen_by_the_caller(tmp_path: Path) -> None:
    labels = ["O", "B", "I"]
    model = sruserve.save(CRFTagger(), tmp_path / "model", "tag", labels=labels, crf_window=7)
    assert model.network.crf is not None
    assert model.network.crf.window == model.config.head.crf_window == 7
    with pytest.raises(TracingError, match="crf_window"):
        sruserve.save(CRFTagger(), tmp_path / "none", "tag", labels=labels, crf_window=5000)
    with pytest.raises(OptionError, match="a module that calls `decode` of a CRF"):
        sruserve.save(Tagger(), tmp_path / "none", "tag", labels=labels, crf_window=7)


def test_a_tagger_with_a_crf_has_its_paths(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = CRFTagger()
    model = sruserve.save(module, tmp_path / "model", "tag", labels=["O", "B", "I"])
    assert model.network.crf is not None
    assert "decode" not in module.crf.__dict__
    x = torch.randint(WORDS, (40,))
    hidden = model.network.hidden(x, single(model.network.layout.allocate(1), len(x)))
    path = model.network.crf.decode(model.network.logits(hidden))
    with torch.no_grad():
        assert [path.tolist()] == module.eval()(x[None])
    result = CliRunner().invoke(app, ["verify", *map(str, _case(tmp_path / "model"))])
    assert result.exit_code == 0, result.output


def _case(folder: Path) -> tuple[Path, Path]:
    return folder, folder / CASE_FILE


class Greedy(CRF):
    """Decodes each step by itself."""

    def decode(self, emissions: Tensor, mask: Tensor | None = None) -> list[list[int]]:
        return [[int(step.argmax()) for step in steps] for steps in emissions]


def test_a_crf_that_decodes_in_another_way_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = CRFTagger()
    module.crf = Greedy(3, batch_first=True)
    with pytest.raises(DifferentAnswers, match=r"Greedy\.decode"):
        sruserve.save(module, tmp_path / "model", "tag")
    assert not (tmp_path / "model").exists()


def test_the_units_and_quantiles_of_a_regressor_are_stored(tmp_path: Path) -> None:
    options: dict[str, Any] = {"names": ["a", "b"], "units": ["K", "m"]}
    sruserve.save(Regressor(), tmp_path / "model", "regress", **options)
    stored = json.loads((tmp_path / "model" / "config.json").read_text())["regression"]
    assert stored["names"] == ["a", "b"]
    assert stored["units"] == ["K", "m"]


class OfUnixTime(nn.Module):
    """Its features have more digits than a float32 holds."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.LSTM(1, 8, batch_first=True)
        self.value = nn.Linear(8, 1)
        self.mean: Tensor
        self.register_buffer("mean", torch.tensor([1.75e9]))

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.value(self.reader((x - self.mean) / 60)[0][:, -1])
        return value


def test_a_module_whose_answers_need_float64_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    times = (1.75e9 + torch.arange(0, 600, 10, dtype=torch.float64))[:, None]
    with pytest.raises(DifferentAnswers):
        sruserve.save(OfUnixTime().double(), tmp_path / "m", "regress", examples=[times, times + 7])
    assert not (tmp_path / "m").exists()
