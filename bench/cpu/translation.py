"""Beam search of 64 sentences by the engine, and by flambe's TransformerSRU with padding.

    pip install --no-deps --target FLAMBE flambe==0.4.18
    pip install --no-deps --target SRU sru==2.6.0
    PYTHONPATH=SRU python -m bench.cpu.translation FLAMBE

Both have the same random weights and one thread, and take turns. flambe's decoder keeps no state,
so a plain beam search runs it over all tokens of all hypotheses in each step, in one batch. Both
must find the same translations, with the same log-probabilities to 1e-3. The end token is out of
reach, so that both take the same number of steps. Seconds are of the processor: a busy machine
changes them little. A round takes about a minute of it, nearly all of which is flambe's.
"""

import importlib.util
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from types import ModuleType
from typing import Any

import sruserve
from bench.report.arguments import command_line
from bench.report.report import Report
from bench.report.samples import Samples
from bench.report.targets import Target
from sruserve.model.importers.translation.build import import_translation

import torch  # isort: skip, after sruserve: it limits how long OpenMP's threads spin
from torch import Tensor, nn  # isort: skip

BOS, EOS, PAD = 1, 2, 0
Translation = list[tuple[list[int], float]]  # tokens and log-probability, the best one first
_TARGET = Target(minimum=3)


class Plain(nn.Module):
    """flambe's modules, and a beam search over padded batches."""

    source_embedding: Any
    target_embedding: Any
    encoder: Any
    decoder: Any

    def __init__(self, folder: Path, vocabulary: int, width: int, inner: int, layers: int) -> None:
        super().__init__()
        embedding, library = (_load(folder, name) for name in ("embedding", "transformer_sru"))
        self.source_embedding, self.target_embedding = (
            embedding.Embeddings(
                vocabulary, width, positional_encoding=True, positonal_max_length=128
            )
            for _ in range(2)
        )
        self.encoder = library.TransformerSRUEncoder(width, width, 8, layers, inner, 0.1)
        self.decoder = library.TransformerSRUDecoder(width, width, 8, layers, inner, 0.1)
        self.output = nn.Linear(width, vocabulary)
        nn.init.normal_(self.output.weight, 0.0, 0.1)
        with torch.no_grad():
            self.output.bias[EOS] = -1e4
        self.eval()

    @torch.no_grad()
    def search(
        self, sources: Sequence[Sequence[int]], beams: int, tokens: int
    ) -> list[Translation]:
        """The hypotheses of each source after so many tokens, the best one first."""
        count = len(sources)
        memory, hidden = (each.repeat_interleave(beams, 0) for each in self._encode(sources))
        memory = memory.transpose(0, 1)
        written = torch.full((1, count * beams), BOS)
        totals = torch.full((count, beams), -torch.inf, dtype=torch.float64)
        totals[:, 0] = 0
        for step in range(tokens):
            later = torch.full((step + 1, step + 1), -torch.inf).triu(1)
            embedded = self.target_embedding(written).transpose(0, 1)
            outputs = self.decoder(embedded, memory, tgt_mask=later, memory_key_padding_mask=hidden)
            log_probs = self.output(outputs[:, -1]).log_softmax(-1)
            log_probs[:, [PAD, BOS]] = -torch.inf
            size = log_probs.shape[1]
            all_totals = (totals.view(-1, 1) + log_probs).view(count, beams * size)
            totals, places = all_totals.topk(beams, 1)
            parents = places // size + torch.arange(count)[:, None] * beams
            written = torch.cat([written[:, parents.view(-1)], (places % size).view(1, -1)])
        sequences = written[1:].T.view(count, beams, tokens).tolist()
        return [
            list(zip(*both, strict=True)) for both in zip(sequences, totals.tolist(), strict=True)
        ]

    def _encode(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """The outputs of each source, padded, and where the padding is.

        Sources of a length are a batch: with a mask, the released layer has the recurrence skip the
        tokens instead of the padding.
        """
        lengths = torch.tensor([len(source) for source in sources])
        memory = torch.zeros(len(sources), int(lengths.max()), self.output.in_features)
        for length in sorted(set(map(len, sources))):
            places = torch.nonzero(lengths == length).view(-1)
            ids = torch.tensor([sources[place] for place in places.tolist()])
            embedded = self.source_embedding(ids.T).transpose(0, 1)
            memory[places, :length] = self.encoder(embedded)[0]
        return memory, torch.arange(memory.shape[1]) >= lengths[:, None]


def _load(folder: Path, name: str) -> Any:
    """One module of flambe alone: the package itself imports much that is not needed here."""
    compiling, package, base = (ModuleType(f"flambe.{n}") for n in ("compile", "nn", "nn.module"))
    compiling.registrable_factory = lambda function: function  # type: ignore[attr-defined]
    package.Module = base.Module = nn.Module  # type: ignore[attr-defined]
    package.__path__ = []
    modules = {module.__name__: module for module in (compiling, package, base)}
    sys.modules |= {"flambe": ModuleType("flambe"), **modules}
    path = folder / "flambe" / "nn" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"flambe.nn.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import(plain: Plain, folder: Path) -> Path:
    """A model folder with the same weights."""
    torch.save({k: v.contiguous() for k, v in plain.state_dict().items()}, folder / "weights.pt")
    sides = {"source": {"pad": PAD}, "target": {"pad": PAD, "bos": BOS, "eos": EOS}}
    options = folder / "options.json"
    options.write_text(json.dumps({"nhead": 8, "release": "2.6.0", **sides}))
    import_translation(folder / "weights.pt", folder / "model", options)
    return folder / "model"


def _ours(model: Any, sources: list[list[int]], tokens: int) -> Any:
    return model.translate(sources, beam_size=5, max_tokens=tokens, length_penalty=0.0)


def _check(ours: Sequence[Any], theirs: Sequence[Translation]) -> None:
    for one, translation in zip(ours, theirs, strict=True):
        tokens, total = translation[0]
        if list(one.token_ids) != tokens or abs(one.log_probability - total) > 1e-3:
            raise SystemExit(f"the searches disagree: {one} and {tokens}, {total}")


def main() -> None:
    """Check, measure and store."""
    parser = command_line("bench.cpu.translation", __doc__)
    parser.add_argument("flambe", type=Path, help="folder of flambe 0.4.18")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24, help="of each translation")
    args = parser.parse_args()
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = (50, 32, 48, 2) if args.quick else (8000, 512, 2048, 4)
    count, tokens = (4, 5) if args.quick else (64, args.tokens)
    plain, draw = Plain(args.flambe, *sizes), random.Random(1)
    sources = [
        [draw.randrange(3, sizes[0]) for _ in range(draw.choice((10, 16, 22, 28)))]
        for _ in range(count)
    ]
    report = Report("translation", ("sru",), args.quick)
    with tempfile.TemporaryDirectory() as folder:
        path = _import(plain, Path(folder))
        with sruserve.load(path, device="cpu") as model:
            _ours(model, sources[:2], 2)
            plain.search(sources[:2], 5, 2)
            times: dict[str, list[float]] = {"sruserve": [], "flambe": []}
            for number in range(1, args.rounds + 1):
                report.progress(f"round {number} of {args.rounds}")
                begin = process_time()
                ours = _ours(model, sources, tokens)
                middle = process_time()
                theirs = plain.search(sources, 5, tokens)
                times["sruserve"].append(middle - begin)
                times["flambe"].append(process_time() - middle)
                _check(ours, theirs)
    samples = {name: Samples(tuple(each), "s") for name, each in times.items()}
    case = f"{count} sentences at beam 5, {tokens} tokens each, processor time"
    report.add_case(case, samples)
    ratio = samples["flambe"].over(samples["sruserve"]).median
    report.check(f"{count} sentences at beam 5: flambe 0.4.18 / sruserve", ratio, "x", _TARGET)
    report.finish(args.results)


if __name__ == "__main__":
    main()
