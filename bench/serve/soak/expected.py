"""The answers that the soak's honest clients expect."""

from typing import Any

from bench.serve.models import questions
from bench.serve.soak.http_client import Http
from bench.serve.soak.observations import WrongAnswer

CLASSIFIER, LANGUAGE_MODEL = "question-type", "shakespeare"
TEXT = {"model": LANGUAGE_MODEL, "prompt": "ROMEO:", "max_tokens": 60, "seed": 7}
_QUESTIONS = 50


class ExpectedAnswers:
    """Scores of questions, and the text of a seed, requested before the soak starts."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.scores: dict[str, dict[str, float]] = {}
        self.text = ""

    async def learn(self, port: int, key: str) -> None:
        async with Http(port, key) as http:
            for question in questions()[:_QUESTIONS]:
                body = {"model": CLASSIFIER, "input": question}
                reply = await http.ask("/v1/classify", body)
                self.scores[question] = reply["results"][0]["scores"]
            self.text = (await http.ask("/v1/completions", TEXT))["choices"][0]["text"]
        self.questions = list(self.scores)

    def check(self, question: str, scores: Any) -> None:
        """Raise `WrongAnswer` unless these are a question's scores, to the last bit."""
        if scores != self.scores[question]:
            raise WrongAnswer(f"{question!r} has the scores {scores}")

    async def checked(self, question: str, result: Any) -> None:
        """Run `check` as a coroutine, for a result of several requests."""
        self.check(question, result["scores"])
