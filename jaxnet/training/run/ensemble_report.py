"""What became of each member of an ensemble, as values and as a table."""

from collections.abc import Mapping
from typing import Any

from jaxnet.training.config import Config


def member_results(config: Config, evaluation: Mapping[str, float]) -> list[dict[str, Any]]:
    """For each member what it was trained with, and how it did on the test split; nothing of a single network."""
    if not config.ensemble.on:
        return []
    return [
        {
            "member": index,
            "seed": config.seed + index,
            "learning_rate": recipe.learning_rate,
            "weight_decay": recipe.weight_decay,
            **{metric: evaluation.get(f"member_{index}/{metric}") for metric in ("loss", "accuracy")},
        }
        for index, recipe in enumerate(config.ensemble.recipes(config.optimizer))
    ]


def ensemble_summary(config: Config, evaluation: Mapping[str, float]) -> dict[str, Any]:
    """An evaluation as the summary of a run holds it: members in a list of their own."""
    common = {name: value for name, value in evaluation.items() if not name.startswith("member_")}
    members = member_results(config, evaluation)
    return {**common, "members": members} if members else common


def ensemble_table(summary: Mapping[str, Any]) -> str:
    """The members of a summary and their mean prediction, a line each; empty for a single network."""
    rows = summary.get("members", [])
    if not rows or "ensemble/accuracy" not in summary:
        return ""
    lines = [f"{'member':>8}  {'seed':>6}  {'learning rate':>13}  {'weight decay':>12}  {'loss':>7}  accuracy"]
    for row in rows:
        lines.append(
            f"{row['member']:>8}  {row['seed']:>6}  {row['learning_rate']:>13g}  {row['weight_decay']:>12g}  "
            f"{row['loss']:>7.4f}  {row['accuracy']:8.2%}"
        )
    for name, prefix in (("mean", ""), ("ensemble", "ensemble/")):
        loss, accuracy = summary[f"{prefix}loss"], summary[f"{prefix}accuracy"]
        lines.append(f"{name:>8}  {'':>6}  {'':>13}  {'':>12}  {loss:>7.4f}  {accuracy:8.2%}")
    return "\n".join(lines)
