"""Learn from sequences of tokens: which class one is of, or which token comes next."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from jaxnet.errors import InputError
from jaxnet.limits import Positive
from jaxnet.tasks.classification import (
    Classification,
    mean_probability,
    measures_as,
    require_logits,
    require_logits_of,
)
from jaxnet.tasks.task import Batch, Measures, PyTree, Task, Values, in_float32


@dataclass(frozen=True)
class SequenceClassification(Classification):
    """Classes of sequences: batches with 'tokens', integers [batch, length], and 'label', int32 [batch].

    The model is called with the tokens. If `pad` is given, it is called with `tokens` and `mask` by name; the mask,
    [batch, length], is False where a sequence has ended, so that the model can leave that out of its mean or its
    attention.

    Attributes:
        pad: the token that fills up short sequences; None: all have one length.
    """

    pad: int | None = None

    needs: ClassVar[tuple[str, ...]] = ("tokens", "label")

    def inputs(self, batch: Batch) -> PyTree:
        """The tokens, and where they are."""
        tokens = batch["tokens"].astype(jnp.int32)
        return tokens if self.pad is None else {"tokens": tokens, "mask": tokens != self.pad}

    def units(self, shapes: Mapping[str, Any]) -> dict[str, int]:
        """Tokens, the filled up ones too."""
        return {"tokens": shapes["tokens"].shape[0]}


@dataclass(frozen=True)
class LanguageModel(Task):
    """The next token: batches with 'tokens', integers [batch, length + 1].

    The model is called with the first `length` tokens and gives logits [batch, length, vocabulary], each place from
    those before it and itself; the loss is the cross-entropy with the token that follows:

        tokens    T h e _ c a t       of length + 1 = 7
        inputs    T h e _ c a
        targets   h e _ c a t

    Every token that is no padding counts alike, wherever it lies. `perplexity` is `exp(loss)`.

    Attributes:
        pad: the token that fills up short sequences, which nobody has to predict. The model is given 0 for a negative
            one.
        bytes_per_token: how many bytes of the text a token stands for, in the mean; 1 for bytes themselves. The loss
            is then reported as `bits_per_byte`, too, by which models with different tokens can be compared:
            `loss / ln(2) / bytes_per_token`.
    """

    pad: int = -1
    bytes_per_token: Positive | None = None

    needs: ClassVar[tuple[str, ...]] = ("tokens",)

    def inputs(self, batch: Batch) -> PyTree:
        """All tokens but the last."""
        return jnp.maximum(batch["tokens"][:, :-1].astype(jnp.int32), 0)

    def measures(self, outputs: PyTree, batch: Batch) -> Measures:
        """Cross-entropy and accuracy, means over the tokens of each sequence."""
        targets, known = self._targets(batch)
        losses = optax.softmax_cross_entropy_with_integer_labels(in_float32(outputs), targets)
        right = (outputs.argmax(-1) == targets).astype(jnp.float32)
        count = jnp.maximum(known.sum(1), 1)
        return {name: (of * known).sum(1) / count for name, of in (("loss", losses), ("accuracy", right))}

    def weights(self, batch: Batch) -> jax.Array:
        """The number of tokens that are predicted."""
        return self._targets(batch)[1].sum(1)

    def _targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """What is predicted, and 1.0 where it counts and 0.0 where it is padding."""
        targets = batch["tokens"][:, 1:].astype(jnp.int32)
        known = (targets != self.pad).astype(jnp.float32)
        return jnp.where(known > 0, targets, 0), known

    def reported(self, means: Mapping[str, float]) -> Values:
        """Loss and accuracy, perplexity and perhaps bits per byte."""
        shown = {**means, "perplexity": math.exp(min(means["loss"], _LARGEST))}
        if self.bytes_per_token is not None:
            shown["bits_per_byte"] = means["loss"] / math.log(2) / self.bytes_per_token
        return shown

    def units(self, shapes: Mapping[str, Any]) -> dict[str, int]:
        """Tokens that are predicted, padding included."""
        return {"tokens": shapes["tokens"].shape[0] - 1}

    def asked(self, batch: Batch) -> PyTree:
        """All tokens: what follows the last is not known."""
        return jnp.maximum(batch["tokens"].astype(jnp.int32), 0)

    def asked_shapes(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """As many tokens as the model saw in training: one less than an example has."""
        tokens = example["tokens"]
        return {"tokens": tokens.update(shape=(tokens.shape[0] - 1,))}

    def predicted(self, outputs: jax.Array) -> jax.Array:
        """The probability of each token to be the next one, after each place: float32 [batch, length, vocabulary]."""
        return jax.nn.softmax(outputs.astype(jnp.float32))

    def combined(self, outputs: jax.Array) -> jax.Array:
        """The logarithm of the mean of the members' probabilities."""
        return mean_probability(outputs)

    def check_model(self, model: Any, outputs: PyTree, source: Any) -> None:
        """Refuse a model that does not give logits for each token, or fewer than there are tokens."""
        shape: tuple[int, ...] = getattr(outputs, "shape", ())
        if len(shape) != 3:
            raise InputError(
                f"the model gives {shape or type(outputs).__name__} for one sequence: wanted logits for each token, "
                "[1, length, vocabulary]"
            )
        require_logits(outputs)
        vocabulary: int = getattr(source, "vocabulary", 1)  # a user's own source need not say
        if shape[2] < vocabulary:
            width = "set model.vocabulary=" if hasattr(model, "vocabulary") else "make the width of its last layer "
            raise InputError(
                f"the model gives logits for {shape[2]} tokens, and the data set has {vocabulary}; {width}{vocabulary}"
            )

    def check_batch(self, batch: Mapping[str, Any], outputs: PyTree, split: str) -> None:
        """Refuse tokens to be predicted that have no logit, unless they are padding."""
        if measures_as(self, LanguageModel):
            targets, logits = batch["tokens"][:, 1:], outputs.shape[-1]
            require_logits_of(targets, logits, batch["id"], f"data: a token of {split} example", besides=self.pad)


_LARGEST = 700.0  # exp() of more is no number
