"""A trained model with its tokenizer: continue a text, score a text, save, and open again."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from inrank import checkpoint
from inrank._files import write_atomically
from inrank.language.baselines import build_model
from inrank.language.data import TokenWindows
from inrank.language.generation import generate
from inrank.language.gpt import parameter_count
from inrank.language.presets import RunConfig
from inrank.language.run_folder import RunFolder
from inrank.language.tokenizers import Tokenizer
from inrank.stages import merge
from inrank.wrapping import low_rank_layers

__all__ = ["LanguageModel"]

_MODEL = "model"  # the checkpoint inside a saved model's folder
_MERGED = "merged"  # a key of its extra values


class LanguageModel:
    """A language model for use.

    Args:
        model: Gives logits (batch, tokens, vocabulary) for tokens, and the mean loss with targets.
        tokenizer: What it was trained with.
        config: How it was trained.
        merged: Whether its low-rank layers have been merged to dense ones.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, config: RunConfig, merged: bool = False) -> None:
        self.model, self.tokenizer, self.config, self.merged = model.eval(), tokenizer, config, merged

    @classmethod
    def from_pretrained(cls, source: str | Path) -> LanguageModel:
        """Open what `save_pretrained` or a training run has left.

        Args:
            source: A folder; or a hub id, "owner/name", which is downloaded.

        Raises:
            FileNotFoundError: There is no model.
            ValueError: The files do not fit together.
            ImportError: A hub id without the extra ``transformers``.
        """
        folder = RunFolder(_local(source))
        config = folder.config()
        tokenizer = folder.tokenizer()
        weights = folder.path / _MODEL if (folder.path / _MODEL).is_dir() else folder.latest()
        if weights is None:
            raise FileNotFoundError(f"no weights in {source}: the run has not reached its first checkpoint")
        merged = bool(_extra(weights).get(_MERGED, False))
        model = build_model(config, tokenizer.vocabulary)
        if merged:
            merge(model)
        checkpoint.load(weights, model, generators=False)
        return cls(model, tokenizer, config, merged)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write weights, ranks, configuration, tokenizer and a model card.

        Args:
            folder: Made if need be.

        Raises:
            ValueError: The folder holds a training run, whose weights these would hide.
        """
        target = RunFolder(folder)
        if target.latest() is not None:
            raise ValueError(f"{folder} holds a training run; save the model in a folder of its own")
        target.begin(self.config, self.tokenizer)
        checkpoint.save(target.path / _MODEL, self.model, extra={_MERGED: self.merged})
        write_atomically(target.path / "README.md", self._card().encode())
        return target.path

    def merge(self) -> LanguageModel:
        """Make all low-rank layers dense, in place."""
        if not self.merged:
            merge(self.model)
            self.merged = True
        return self

    def generate(
        self, prompt: str, tokens: int = 200, *, temperature: float = 0.8, top_k: int = 0, seed: int = 0
    ) -> str:
        """Continue a text; see `inrank.language.generation.generate`."""
        return generate(self.model, self.tokenizer, prompt, tokens, temperature=temperature, top_k=top_k, seed=seed)

    @torch.no_grad()
    def loss(self, text: str, batch_size: int = 16) -> float:
        """Mean cross-entropy of a text [nats per token], in sequences of the context's length.

        Args:
            text: Longer than the context.
            batch_size: Sequences at once.

        Raises:
            ValueError: The text is too short.
        """
        windows = TokenWindows(self.tokenizer.encode(text), self.config.model.context)
        tokens, targets = windows.evenly(windows.windows)
        total = 0.0
        for start in range(0, len(tokens), batch_size):
            part = slice(start, start + batch_size)
            total += float(self.model(tokens[part], targets[part])) * len(tokens[part])
        return total / len(tokens)

    def _card(self) -> str:
        ranks = {name: layer.rank for name, layer in low_rank_layers(self.model).items()}
        shape = self.config.model
        lines = [
            "---",
            "library_name: inrank",
            "pipeline_tag: text-generation",
            "---",
            f"# A GPT of {parameter_count(self.model) / 1e6:.2f} million parameters",
            "",
            f"{shape.layers} layers, width {shape.width}, {shape.heads} heads, context {shape.context}; trained by "
            f"`inrank` with the method {self.config.method.name} on the source {self.config.data.source!r}.",
            "",
            "```python",
            "from inrank.language.language_model import LanguageModel",
            'print(LanguageModel.from_pretrained("this folder").generate("The state of the union"))',
            "```",
        ]
        if ranks:
            lines += ["", "| layer | rank |", "|---|---|", *(f"| {name} | {rank} |" for name, rank in ranks.items())]
        return "\n".join([*lines, ""])


def _extra(weights: Path) -> dict[str, object]:
    index = json.loads((weights / "checkpoint.json").read_text(encoding="utf-8"))
    extra = index.get("extra")
    return extra if isinstance(extra, dict) else {}


def _local(source: str | Path) -> Path:
    path = Path(source)
    if path.is_dir() or str(source).count("/") != 1 or str(source).startswith((".", "/")):
        return path
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise ImportError("a hub id needs huggingface_hub: `pip install 'inrank[transformers]'` has it") from error
    try:
        return Path(snapshot_download(str(source)))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"there is no folder {source} here, and as a hub id it could not be fetched: {error}"
        ) from error
