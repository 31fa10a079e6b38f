"""The folder of a run: config.json, the tokenizer, log.jsonl, and checkpoints that are whole or not there.

RUN/config.json                     the configuration
RUN/tokenizer.json                  of "gpt2" and "bpe"
RUN/log.jsonl                       one line per step, validation, rank event and stage
RUN/checkpoints/step-00000100/      weights, ranks, optimizer and counters; the two newest are kept
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from inrank import checkpoint
from inrank._files import write_atomically
from inrank.controller import RankController
from inrank.distributed import is_first_process
from inrank.language.presets import RunConfig
from inrank.language.tokenizers import Tokenizer, load_tokenizer

__all__ = ["RunFolder"]

_KEPT = 2


class RunFolder:
    """A run on the disk.

    Args:
        path: Its folder; made when something is written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def begin(self, config: RunConfig, tokenizer: Tokenizer) -> None:
        """Write what does not change in the run.

        Raises:
            ValueError: Another run is in the folder.
        """
        if (self.path / "config.json").is_file() and self.config() != config:
            raise ValueError(f"{self.path} holds a run with other settings: choose another folder, or remove it")
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "config.json", (json.dumps(config.to_dict(), indent=1) + "\n").encode())
        tokenizer.save(self.path)

    def config(self) -> RunConfig:
        """The run's configuration.

        Raises:
            FileNotFoundError: There is no run in the folder.
            ValueError: config.json is damaged.
        """
        try:
            text = (self.path / "config.json").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"no run in {self.path}: expected a folder that `inrank train` wrote") from error
        try:
            table = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{self.path / 'config.json'} is damaged: {error}") from error
        return RunConfig.from_dict(table)

    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer."""
        return load_tokenizer(self.config().data.tokenizer, self.path)

    # -- log -----------------------------------------------------------------------------------------------------

    def write_log(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write the whole log."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(self.path / "log.jsonl", text.encode())

    def read_log(self, until: int | None = None) -> list[dict[str, Any]]:
        """The log, up to and with a step; empty if there is none.

        Raises:
            ValueError: It is damaged.
        """
        file = self.path / "log.jsonl"
        if not file.is_file():
            return []
        try:
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise ValueError(f"{file} is damaged: {error}") from error
        return [line for line in lines if until is None or line["step"] <= until]

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def latest(self) -> Path | None:
        """The newest checkpoint that is whole."""
        return checkpoint.latest(self.path / "checkpoints")

    def save(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        controller: RankController | None,
        counters: dict[str, Any],
    ) -> Path:
        """Write a checkpoint, which appears when it is whole, and remove old ones; all processes call this.

        Returns:
            Its folder.
        """
        target = self.path / "checkpoints" / f"step-{counters['step']:08d}"
        checkpoint.save(target, model, optimizer, controller, extra=counters)
        if is_first_process():
            for old in sorted(target.parent.glob("step-*"))[:-_KEPT]:
                shutil.rmtree(old)
        return target

    def load(self, model: nn.Module, optimizer: Optimizer, controller: RankController | None) -> dict[str, Any] | None:
        """Bring model, optimizer and controller to the newest checkpoint.

        Returns:
            Its counters; None if there is no checkpoint.

        Raises:
            ValueError: The checkpoint is of another model.
        """
        newest = self.latest()
        return None if newest is None else checkpoint.load(newest, model, optimizer, controller)
