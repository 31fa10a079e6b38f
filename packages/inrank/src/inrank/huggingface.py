"""Growing ranks under transformers.Trainer (needs the extra "transformers")."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from inrank._files import write_atomically
from inrank.checkpoint import adopt_layers, describe_layers
from inrank.config import InRankConfig
from inrank.controller import RankController
from inrank.distributed import process_count
from inrank.wrapping import low_rank_layers

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise ImportError("inrank.huggingface needs transformers: pip install 'inrank[transformers]'") from error

__all__ = ["InRankCallback"]

_FILE = "inrank.json"


class InRankCallback(TrainerCallback):
    """Runs a `RankController` inside a Trainer and keeps ranks in its checkpoints.

    The model is wrapped before the Trainer is made, which then makes the optimizer::

        inrank.wrap(model, config=config)
        callback = InRankCallback()
        trainer = Trainer(model, args, train_dataset=data, callbacks=[callback])
        trainer.train()

    To resume, ranks have to be restored before the Trainer reads weights::

        callback = InRankCallback(resume_from=folder)
        trainer = Trainer(model, args, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=folder)

    Args:
        config: See `RankController`.
        resume_from: A folder `checkpoint-N`; True: the last one in the Trainer's output folder.
        settings: Further arguments of `RankController`, as `log` or `amortize`.

    Attributes:
        controller: There from the begin of training on.
    """

    def __init__(
        self, config: InRankConfig | None = None, *, resume_from: str | Path | bool = False, **settings: Any
    ) -> None:
        self.config, self.settings = config, settings
        self.resume_from = resume_from
        self.controller: RankController | None = None
        self._saved: dict[str, Any] | None = None

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restore ranks, if training is to be resumed.

        Raises:
            FileNotFoundError: If there is no checkpoint with ranks.
            ValueError: If the model has other layers.
        """
        if not self.resume_from:
            return
        folder: str | Path = str(args.output_dir)
        if self.resume_from is not True:
            folder = self.resume_from
        elif Path(folder).is_dir():
            folder = get_last_checkpoint(str(folder)) or folder  # type: ignore[no-untyped-call]
        path = Path(folder) / _FILE
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there: no checkpoint that was saved with an InRankCallback")
        self._saved = json.loads(path.read_text(encoding="utf-8"))
        adopt_layers(kwargs["model"], self._saved["layers"])

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Make the controller.

        Raises:
            ValueError: If training is resumed without `resume_from`, or the model cannot be trained so.
        """
        model: nn.Module = kwargs["model"]
        resized = [name for name, layer in low_rank_layers(model).items() if layer.config.storage == "resize"]
        if process_count() > 1 and resized:
            raise ValueError(
                f"{process_count()} processes: the Trainer uses DDP or FSDP, whose buffers have the shapes that "
                f'parameters had at the start (layer {resized[0]}): wrap the model with InRankConfig(storage="reserve")'
            )
        if state.global_step > 0 and self._saved is None:
            raise ValueError(
                f"training is resumed at step {state.global_step}, but ranks were not: give the callback the same "
                "folder, InRankCallback(resume_from=...)"
            )
        if self.controller is not None:
            self.controller.close()
        self.controller = RankController(model, kwargs["optimizer"], self.config, **self.settings)
        if self._saved is not None and state.global_step > 0:
            self.controller.load_state_dict(self._saved["controller"])

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check ranks when they are due."""
        if self.controller is not None:
            self.controller.step()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Add the mean rank to what the Trainer logs."""
        logs = kwargs.get("logs")
        if self.controller is not None and logs is not None:
            logs["inrank/mean_rank"] = state.log_history[-1]["inrank/mean_rank"] = self.controller.report().mean_rank

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write ranks and the controller into the checkpoint."""
        if self.controller is None or not args.should_save:
            return
        content = {"layers": describe_layers(kwargs["model"]), "controller": self.controller.state_dict()}
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        write_atomically(folder / _FILE, json.dumps(content, indent=1).encode())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let go of the optimizer."""
        if self.controller is not None:
            self.controller.close()
