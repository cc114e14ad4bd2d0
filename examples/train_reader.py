"""Train a small document reader on facts that this script makes, as DrQA (Chen et al. 2017).

    python -m examples.train_reader --out reader
    sruserve import reader/reader.pt models/reader --task answer

A text has some facts ("Ada lives in New Lisbon."), and a question asks for one ("Where does Ada
live?"). Measures answers about people whose names training never saw. Needs torch alone. Writes
`reader.pt`, in the form of DrQA's files: weights, words, names of features and arguments.
"""

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

# Facts, and for each of their values a question that it answers.
FACTS = {
    "{who} lives in {place} .": {
        "place": "Where does {who} live ?", "who": "Who lives in {place} ?"
    },
    "{who} works as {job} .": {"job": "What does {who} work as ?", "who": "Who works as {job} ?"},
    "{who} met {friend} .": {"friend": "Who did {who} meet ?", "who": "Who met {friend} ?"},
    "{who} eats {food} .": {"food": "What does {who} eat ?", "who": "Who eats {food} ?"},
}  # fmt: skip
PLACES = "Lisbon Porto Oslo Rome Cairo Lima Delhi Kyoto Bergen Quito Turin Accra"
JOBS = "baker nurse pilot tailor judge miner farmer dentist painter sailor cook"
FOODS = "bread rice soup fish beans cheese apples pasta nuts plums oats"
WORDS = {"place": PLACES.split(), "job": JOBS.split(), "food": FOODS.split()}
FIRST, LONG = ("New", "Old", "South"), 0.3  # of values of two words, and their share
NAMED = "Ada Ben Cleo Dan Eva Finn Gus Hana Ivo Jana Kai Lea Max Nora Otto Pia Quin Rosa"
NEWLY_NAMED = "Sven Tara Ulla Vito Wim Xena Yuri Zoe Arlo Bess Carl Dora Emil Faye Gil Hope"
NAMES, NEW_NAMES = NAMED.split(), NEWLY_NAMED.split()
FEATURES = ("in_question", "in_question_uncased", "tf")
NOTHING, UNKNOWN = "<NULL>", "<UNK>"


class Example(NamedTuple):
    """A text, a question about it, and the first and last word of the answer."""

    words: list[str]
    question: list[str]
    first: int
    last: int


class Encoder(nn.Module):
    """Bidirectional LSTMs, whose outputs are side by side."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.rnns = nn.ModuleList(
            nn.LSTM(inputs if i == 0 else 2 * hidden, hidden, bidirectional=True, batch_first=True)
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Read x (batch, words, inputs)."""
        outputs = []
        for rnn in self.rnns:
            x = rnn(x)[0]
            outputs.append(x)
        return torch.cat(outputs, 2)


class Attention(nn.Module):
    """A linear layer with DrQA's name."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)


class Reader(nn.Module):
    """DrQA's document reader. hidden: width of a direction of a layer."""

    def __init__(self, words: int, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        outputs = 2 * hidden * layers
        self.embedding = nn.Embedding(words, width)
        self.qemb_match = Attention(width, width)
        self.doc_rnn = Encoder(2 * width + len(FEATURES), hidden, layers)
        self.question_rnn = Encoder(width, hidden, layers)
        self.self_attn = Attention(outputs, 1)
        self.start_attn = Attention(outputs, outputs)
        self.end_attn = Attention(outputs, outputs)

    def forward(self, words: Tensor, features: Tensor, question: Tensor) -> tuple[Tensor, Tensor]:
        """Score words (batch, words) as the ends of the answer to question (batch, words)."""
        embedded, questions = self.embedding(words), self.embedding(question)
        keys, others = (self.qemb_match.linear(x).relu() for x in (embedded, questions))
        aligned = (keys @ others.transpose(1, 2)).softmax(2) @ questions
        document = self.doc_rnn(torch.cat([embedded, aligned, features], 2))
        states = self.question_rnn(questions)
        merged = (self.self_attn.linear(states).softmax(1) * states).sum(1)
        ends = (attention.linear(merged) for attention in (self.start_attn, self.end_attn))
        start, end = (torch.einsum("bwh,bh->bw", document, each) for each in ends)
        return start, end


def made_up(count: int, names: Sequence[str], draw: random.Random) -> list[Example]:
    """Texts of one shape, so that they need no padding, with a question each."""
    facts = draw.choices(list(FACTS), k=draw.randint(2, 5))
    place = draw.randrange(len(facts))
    answer = draw.choice(list(FACTS[facts[place]]))
    long = [draw.random() < LONG for _ in facts]
    return [_one(facts, place, answer, long, names, draw) for _ in range(count)]


def _one(
    facts: Sequence[str],
    place: int,
    answer: str,
    long: Sequence[bool],
    names: Sequence[str],
    draw: random.Random,
) -> Example:
    """A text of facts. place, answer: the fact and the value that the question asks for."""
    people = iter(draw.sample(names, 2 * len(facts)))
    values = {kind: draw.sample(words, len(facts)) for kind, words in WORDS.items()}
    words: list[str] = []
    question: list[str] = []
    first = last = 0
    for i, fact in enumerate(facts):
        fields = {"who": next(people), "friend": next(people)}
        for kind, each in values.items():
            fields[kind] = f"{draw.choice(FIRST)} {each[i]}" if long[i] else each[i]
        if i == place:
            question = FACTS[fact][answer].format(**fields).split()
            before = fact.partition(f"{{{answer}}}")[0].format(**fields).split()
            first = len(words) + len(before)
            last = first + len(fields[answer].split()) - 1
        words += fact.format(**fields).split()
    return Example(words, question, first, last)


def features_of(example: Example) -> list[list[float]]:
    """The exact matches and the frequency of each word."""
    lowered = [word.lower() for word in example.words]
    counts, uncased = Counter(lowered), {word.lower() for word in example.question}
    return [
        [float(word in example.question), float(low in uncased), counts[low] / len(lowered)]
        for word, low in zip(example.words, lowered, strict=True)
    ]


def tensors_of(
    batch: Sequence[Example], numbers: dict[str, int], unknown: float, draw: random.Random
) -> tuple[Tensor, Tensor, Tensor]:
    """Words, features and questions. unknown: share of the names that are read as unknown words."""
    words: list[list[int]] = []
    questions: list[list[int]] = []
    for example in batch:
        hidden = {name for name in NAMES if draw.random() < unknown}
        for texts, lists in ((example.words, words), (example.question, questions)):
            lists.append([numbers[UNKNOWN] if t in hidden else numbers.get(t, 1) for t in texts])
    features = torch.tensor([features_of(example) for example in batch])
    return torch.tensor(words), features, torch.tensor(questions)


def train(model: Reader, numbers: dict[str, int], args: argparse.Namespace) -> None:
    """Train on texts about `NAMES`."""
    draw, optimizer = random.Random(args.seed), torch.optim.Adam(model.parameters(), lr=args.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.rate, args.updates)
    for update in range(1, args.updates + 1):
        batch = made_up(args.batch, NAMES, draw)
        start, end = model(*tensors_of(batch, numbers, 0.5, draw))
        loss = nn.functional.cross_entropy(start, torch.tensor([each.first for each in batch]))
        loss = loss + nn.functional.cross_entropy(end, torch.tensor([each.last for each in batch]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if update % 100 == 0:
            print(f"update {update}: loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def exact_match(model: Reader, numbers: dict[str, int], count: int, seed: int) -> float:
    """The share of right answers about people of `NEW_NAMES`."""
    draw, right = random.Random(f"test {seed}"), 0
    for _ in range(count):
        (example,) = made_up(1, NEW_NAMES, draw)
        start, end = model(*tensors_of([example], numbers, 0.0, draw))
        spans = start.softmax(1).T @ end.softmax(1)
        best = int(spans.triu().tril(14).argmax())
        right += divmod(best, len(example.words)) == (example.first, example.last)
    return right / count


def main() -> None:
    """Train, measure and write."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--width", type=int, default=24, help="width of the embedding")
    parser.add_argument("--hidden", type=int, default=24, help="width of a direction of a layer")
    parser.add_argument("--layers", type=int, default=2, help="layers of each encoder")
    parser.add_argument("--updates", type=int, default=500, help="updates of the weights")
    parser.add_argument("--batch", type=int, default=32, help="questions in an update")
    parser.add_argument("--rate", type=float, default=1e-2, help="highest learning rate")
    parser.add_argument("--tested", type=int, default=500, help="questions to measure")
    parser.add_argument("--seed", type=int, default=1, help="seed of the texts and the weights")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    texts = " ".join([*FACTS, *(form for forms in FACTS.values() for form in forms.values())])
    known = [word for word in texts.split() if "{" not in word]
    known += [*NAMES, *FIRST, *(word for words in WORDS.values() for word in words)]
    numbers = {word: i for i, word in enumerate(dict.fromkeys([NOTHING, UNKNOWN, *known]))}
    model = Reader(len(numbers), args.width, args.hidden, args.layers)
    train(model, numbers, args)
    args.out.mkdir(parents=True, exist_ok=True)
    saved = {
        "state_dict": model.state_dict(),
        "word_dict": numbers,
        "feature_dict": {name: i for i, name in enumerate(FEATURES)},
        "args": {"model_type": "rnn", "question_merge": "self_attn", "concat_rnn_layers": True},
    }
    torch.save(saved, args.out / "reader.pt")
    share = exact_match(model, numbers, args.tested, args.seed)
    print(f"exact match {share:.1%} on names that training never saw; wrote {args.out}")


if __name__ == "__main__":
    main()
