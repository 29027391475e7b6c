"""A small transformer on Python's own help texts, byte by byte.

Source: `pydoc_data.topics` (420 kB of English for training, 43 kB for testing), which every Python brings.
Command: python train.py --config configs/text_transformer.py
"""

from jaxnet import Checkpoints, Config, LanguageModel, Log, Optimizer
from jaxnet.data import PythonTopics
from jaxnet.models import Transformer


def get_config() -> Config:
    """The run."""
    return Config(
        model=Transformer(dim=128, depth=4, heads=4, dropout=0.1),
        data=PythonTopics(length=256),
        task=LanguageModel(bytes_per_token=1),
        epochs=10,
        batch_size=16,
        eval_batch_size=16,
        eval_every_epochs=2,
        optimizer=Optimizer("adamw", learning_rate=2e-3, warmup_steps=50, weight_decay=0.1, clip_norm=1.0),
        checkpoints=Checkpoints(every_steps=200),
        log=Log(every_steps=25),
    )
