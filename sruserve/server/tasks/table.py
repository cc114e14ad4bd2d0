"""The table of all tasks."""

from typing import Any, NamedTuple

from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.tasks.answer import AnswerTask
from sruserve.server.tasks.classify import ClassifyTask
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.embed import EmbedTask
from sruserve.server.tasks.encode import EncodeTask
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.regress import RegressTask
from sruserve.server.tasks.score import ScoreTask
from sruserve.server.tasks.tag import TagTask
from sruserve.server.tasks.task import Resources, Task
from sruserve.server.tasks.tokenize import DetokenizeTask, TokenizeTask
from sruserve.server.tasks.translate import TranslateTask


class Tasks(NamedTuple):
    """One task of each kind."""

    classify: ClassifyTask
    tag: TagTask
    regress: RegressTask
    answer: AnswerTask
    encode: EncodeTask
    embed: EmbedTask
    score: ScoreTask
    tokenize: TokenizeTask
    detokenize: DetokenizeTask
    complete: CompleteTask
    translate: TranslateTask

    @classmethod
    def create(
        cls, catalogue: Catalogue, limits: InputLimits, constraints: ConstraintCache
    ) -> "Tasks":
        """Create the tasks of a server."""
        resources = Resources(catalogue, limits, constraints)
        return cls(
            ClassifyTask(resources),
            TagTask(resources),
            RegressTask(resources),
            AnswerTask(resources),
            EncodeTask(resources),
            EmbedTask(resources),
            ScoreTask(resources),
            TokenizeTask(resources),
            DetokenizeTask(resources),
            CompleteTask(resources),
            TranslateTask(resources),
        )

    def of_model(self, name: str, *, reads_input: bool = False) -> Task[Any, Any]:
        """The task with a name from a model's config.

        reads_input: for a language model, the task that scores an `input` instead of the one that
            continues a `prompt`.
        """
        if name == self.score.name and reads_input:
            return self.score
        tasks = (
            self.classify, self.tag, self.regress, self.answer, self.encode, self.complete
        )  # fmt: skip
        return next(task for task in tasks if name in (task.name, *task.other_names))
