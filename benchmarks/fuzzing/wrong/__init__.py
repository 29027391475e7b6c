"""Parts of a config that are wrong in themselves: models, tasks, data sets, optimizers, strategies, whole files.

Each must be refused by one line that names what is wrong, with status 2: before anything is written where it can be
known by then, and else in the middle of a run.
"""

from benchmarks.fuzzing.wrong.data import DATA
from benchmarks.fuzzing.wrong.files import FILES
from benchmarks.fuzzing.wrong.models import MODELS
from benchmarks.fuzzing.wrong.part import Wrong
from benchmarks.fuzzing.wrong.recipes import OPTIMIZERS, STRATEGIES
from benchmarks.fuzzing.wrong.tasks import TASKS

WRONG: dict[str, dict[str, Wrong]] = {
    "model": MODELS,
    "task": TASKS,
    "data": DATA,
    "optimizer": OPTIMIZERS,
    "strategy": STRATEGIES,
    "file": FILES,
}
