"""A linear regression of how a disease progresses, on a table of 354 patients.

Source: scikit-learn's `load_diabetes` (Efron et al., 2004), embedded.
Command: python train.py --config configs/diabetes.py
Expected: R2 of 0.604 on the 88 test patients (seed 0), as scikit-learn's ridge with alpha = 3 on the same split
(0.6045). A second of training.
"""

import flax.linen as nn

from jaxnet import Checkpoints, Config, Log, Optimizer, Regression
from jaxnet.data import Diabetes


def get_config() -> Config:
    """The run."""
    return Config(
        model=nn.Dense(1),
        data=Diabetes(),
        task=Regression(mean=151.8, std=75.6),
        epochs=60,
        batch_size=32,
        eval_batch_size=88,
        eval_every_epochs=20,
        # Ridge with alpha = 3: its penalty alpha |w|^2 on the sum of squares is a decay of 2 alpha / n on their mean.
        optimizer=Optimizer("sgd", learning_rate=0.02, weight_decay=2 * 3 / 354),
        checkpoints=Checkpoints(every_steps=200),
        log=Log(every_steps=100),
    )
