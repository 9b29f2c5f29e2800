"""The frame of every way to train: from a call's arguments to parts that say where they came from.

A way is a small file on it: what it optimises, on which batches, and which parts it returns.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dovetail.core.errors import CutError, SettingsError, TaskError, TrainingError, argument
from dovetail.core.seeds import derived_seed
from dovetail.measure.forward import outputs_of, prepare, preprocess_for
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import CutPoint, cut_all, output_point
from dovetail.parts.facts import Origin
from dovetail.parts.modules import structure_of
from dovetail.parts.part import Part, as_part, ports_of
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.filtering import Filter
from dovetail.train.fit import Fit, ModularTraining, ModuleHistory, Row, kept_epoch
from dovetail.train.loop import EpochSource, Turns
from dovetail.train.options import LoopOptions, Moment, Options, choose_device
from dovetail.train.sifting import Sifted, Sight, kept_inputs
from dovetail.train.supervision import Batches, Loss, Prepared, below
from dovetail.train.together import Company

HEAD = "head"
"""What the last stage of a training in stages is called."""

At = str | CutPoint | Sequence[str | CutPoint]
Rows = tuple[Row, ...]
Step = Callable[[Any], Tensor]
Validate = Callable[[], Row] | None


class Course:
    """One training: what was chosen, what its record and its origins say, its loops, its outcome.

    Args:
        how: The way to train, by name.
        tasks: What is learnt from.
        options: The loop's, as the caller gave them.
        augment: Such as ``"flip,shift:2"``.
        filter: Such as ``"features:10"``, see :class:`~dovetail.train.filtering.Filter`.
        seed: For everything drawn.

    Attributes:
        settings: What the record and the origins say; a way adds its own.
        identity: What a checkpoint must have in common beside them: the parts that were copied.

    >>> task = Task([[0.0], [1.0]] * 4, [0, 1] * 4)
    >>> course = Course("mine", task, {"epochs": 3}, seed=1)
    >>> course.settings["how"], course.settings["epochs"], course.options.epochs
    ('mine', 3, 3)
    """

    def __init__(
        self,
        how: str,
        tasks: Task | Sequence[Task],
        options: LoopOptions,
        *,
        augment: str | Augment | None = None,
        filter: str | Filter | None = None,
        seed: int = 0,
    ) -> None:
        if "loss" in options:
            raise SettingsError(
                f"{argument('loss')} is of outputs and targets, and {argument('how', how)} has no "
                "targets; leave it out"
            )
        self.options, self.seed = Options(**options), seed
        self.augment = Augment.parse(augment) if isinstance(augment, str) else augment
        self.device = choose_device(self.options.device)
        self.tasks = tuple(tasks) if isinstance(tasks, Sequence) else (tasks,)
        for task in self.tasks:
            if not isinstance(task, Task):
                said = f"a task must be a Task, got {type(task).__name__}; see dt.load_task"
                raise SettingsError(said)
        self.identity: dict[str, Any] = {"parts": []}
        self._turns: dict[str | None, Turns] = {}
        learnt = [task.fingerprint for task in self.tasks]
        one = not isinstance(tasks, Sequence)
        self.settings: dict[str, Any] = {
            "how": how,
            "seed": seed,
            "augment": None if self.augment is None else str(self.augment),
            **({"task_fingerprint": learnt[0]} if one else {"task_fingerprints": learnt}),
            "device": str(self.device),
            **self.options.described(),
        }
        self.filter, self._spent = Filter.of(filter), 0.0
        self._payer: str | None = None
        if self.filter is not None:
            self.filter = self.filter.within(self.options.epochs)
            for task in self.tasks:
                if self.filter.compares and task.kind != "classes":
                    raise TaskError(
                        f"{task.name!r} is of kind {task.kind!r}, and k-filtering is about "
                        f"classes; {argument('filter', 'loss:0.25')} needs none"
                    )
                if task.kind == "pairs":
                    raise TaskError(
                        f"{task.name!r} has pair labels only, and a filter needs targets"
                    )
            self.settings["filter"] = str(self.filter)
            self.settings["filter_of"] = sum(task.size("train") for task in self.tasks)

    def filtered(self, task: Task) -> Task:
        """The task with the rows of its training split that a filter before training keeps."""
        if self.filter is None or self.filter.by != "inputs":
            return task
        began = time.perf_counter()
        left = kept_inputs(self.filter, task, self.seed, self.options.batch_size)
        self._spent += time.perf_counter() - began
        kept = self.settings.get("filter_kept", 0) + left.size("train")
        self.settings["filter_kept"] = kept
        return left

    def sifted(
        self,
        batches: Batches | Prepared,
        targets: Tensor,
        sight: Sight,
        *,
        source: EpochSource | None = None,
        size: int | None = None,
    ) -> EpochSource:
        """Batches of the rows that a filter keeps in each epoch; without one, as they are.

        Args:
            batches: Of all rows.
            targets: Of these rows.
            sight: How a filter looks at them.
            source: The batches with what else is done with them.
            size: Examples a batch, if not the course's.
        """
        if self.filter is None or self.filter.by == "inputs":
            return source or batches
        size = size or self.options.batch_size
        return Sifted(batches, self.filter, targets, size, sight, device=self.device, source=source)

    def _told(self, rows: Rows, stage: str, samples: int | None) -> Rows:
        """Rows that say what a filter before training left, and took before the first epoch."""
        if "filter_kept" not in self.settings or not rows:
            return rows
        self._payer = stage if self._payer is None else self._payer
        told = {"samples": samples or self.settings["filter_kept"], "filter seconds": 0.0}
        first, *more = ({**row, **told} for row in rows)
        spent = self._spent if stage == self._payer else 0.0
        return ({**first, "filter seconds": spent}, *more)

    def twin(self, start: Part, task: Task, preprocess: Preprocess | None = None) -> Part:
        """A copy of a network on the device, with the contract that training on ``task`` gives it.

        That is the start's contract with the task's classes, preprocessing and inputs.
        """
        contract = replace(
            start.contract,
            preprocess=preprocess or start.contract.preprocess or preprocess_for(task),
            classes=task.classes if task.kind in ("classes", "multilabel") else None,
            kind="classes" if task.kind == "pairs" else task.kind,
            inputs=task.input_names or None,
        )
        if contract.takes[0].shape is None:
            sample = task.inputs[task.indices("train")[:1]]
            contract = replace(contract, takes=ports_of(prepare(sample, contract)))
        return self.copied(start.changed(contract=contract))

    def copied(self, part: Part, *, frozen: bool = False) -> Part:
        """A copy on the device; of a frozen one no gradient reaches any weight.

        A checkpoint belongs to parts of this structure and preprocessing, frozen like these.
        """
        lines = {
            "structure": structure_of(part.module),
            "frozen": [n for n, p in part.module.named_parameters() if not p.requires_grad],
        }
        facts = {
            what: hashlib.sha256("\n".join(each).encode()).hexdigest()[:16]
            for what, each in lines.items()
        }
        self.identity["parts"].append({**facts, "preprocess": part.contract.preprocess})
        module = copy.deepcopy(part.module).to(self.device)
        return part.changed(module=module.requires_grad_(False) if frozen else module)

    def descent(self, network: Callable[[Tensor], Tensor], loss: Loss) -> Step:
        """The step of every training with targets: the loss of what a network gives."""

        def step(batch: tuple[Tensor, Tensor]) -> Tensor:
            inputs, targets = (tensor.to(self.device) for tensor in batch)
            return loss(network(inputs), targets)

        return step

    def run(
        self,
        module: nn.Module,
        batches: EpochSource,
        step: Step,
        *,
        validate: Validate = None,
        seed: int | None = None,
        label: str | None = None,
        stage: str | None = None,
        options: Options | None = None,
        together: Company | None = None,
        until: int | None = None,
        keep: bool = False,
        samples: int | None = None,
    ) -> Rows:
        """Train ``module`` in place, leave it in evaluation mode, and return a row an epoch.

        Args:
            module: What is optimised, already on the device.
            batches: Where batches come from.
            step: The loss of one batch.
            validate: Measures after each epoch.
            seed: If not the course's.
            label: Words beside the progress bar; by default the task's name.
            stage: Of a training in several, which one; its checkpoint is a file of its own.
            options: If not the course's.
            together: For a network that is averaged with those of other processes.
            until: Only until so many epochs are done; the same stage may go on later.
            keep: Save the end too, if there is a checkpoint.
            samples: What a filter before training left for this stage, if not all that it left.
        """
        options = options or self.options
        turns = self._turns.pop(stage, None) or self.turns(
            module, batches, step, seed=seed, stage=stage, options=options, together=together
        )
        label = self.tasks[0].name if label is None else label
        rows = turns.go(until, batches=batches, validate=validate, label=label, keep=keep)
        if until is not None and until < options.epochs:
            turns.rest()
            self._turns[stage] = turns
        module.zero_grad(set_to_none=True)
        module.eval()
        return self._told(rows, stage or "", samples)

    def turns(
        self,
        module: nn.Module,
        batches: EpochSource,
        step: Step,
        *,
        validate: Validate = None,
        seed: int | None = None,
        stage: str | None = None,
        options: Options | None = None,
        together: Company | None = None,
    ) -> Turns:
        """A training that has not begun, its checkpoint named and told from those of others."""
        options = options or self.options
        if together is not None and together.rank > 0:
            options = replace(options, show=False)
        if stage is not None:
            options = replace(options, checkpoint=stage_file(options.checkpoint, stage))
        return Turns(
            module,
            batches,
            step,
            options,
            validate,
            seed=self.seed if seed is None else seed,
            identity={**self.identity, **self.settings, "stage": stage},
            together=together,
        )

    def origin(
        self, parents: Iterable[Part], measured: Mapping[str, float], task: Task | None = None
    ) -> Origin:
        """Where a part of this training comes from, and what it reached on validation."""
        task = task or self.tasks[0]
        return Origin(
            how="train",
            parents=tuple(part.digest for part in parents),
            task=task.name,
            task_fingerprint=task.fingerprint,
            settings=self.settings,
            measured={k: v for k, v in measured.items() if k.startswith("validation ")},
        )

    def finished(self, part: Part, parents: Iterable[Part], measured: Mapping[str, float]) -> Part:
        """The trained part.  Training renews what it means: the start's space is not kept."""
        part.module.eval()
        contract = part.contract.in_space(None)
        return part.changed(origin=self.origin(parents, measured), contract=contract)


def try_once(part: Part, task: Task) -> None:
    """Fail before the first epoch when network and task do not fit."""
    output = outputs_of(part, task.inputs[task.indices("train")[:2]])
    if output.ndim != 2 or output.shape[1] != task.outputs:
        raise TaskError(
            f"the network gives {tuple(output.shape[1:])} numbers an example, {task.name!r} needs "
            f"{task.outputs}; build it with {argument('set.classes', task.outputs)}"
        )


def as_parts(models: Sequence[Part | nn.Module] | Part | nn.Module) -> list[Part]:
    """One model or several, as parts.

    >>> len(as_parts(nn.Linear(1, 1))), len(as_parts(nn.ModuleList([nn.ReLU(), nn.ReLU()])))
    (1, 2)
    """
    if isinstance(models, Part | nn.Module) and not isinstance(models, nn.ModuleList):
        return [as_part(models)]
    return [as_part(model) for model in models]


class Stages:
    """Modules of one network, trained one after the other; each stays as it is from then on.

    Every stage has a seed and a checkpoint of its own.  Callbacks see the whole network and epochs
    that are counted on from stage to stage.

    Args:
        course: What all stages have in common.
        whole: The network.
        at: Where to cut it; by default before the last layer that has weights.

    Attributes:
        points: The names of the cut points.
        modules: What lies between them, front first.
    """

    def __init__(self, course: Course, whole: Part, at: At | None = None) -> None:
        self._course, self._whole = course, whole
        self._epochs: dict[str, int] = {}
        self.points = chosen_points(whole, at)
        self.modules = cut_all(whole, at=self.points)
        _refuse_unfit(self.modules, self.points)

    def before(self, number: int) -> Part:
        """What comes before a module, counted from 0; the first has but the preprocessing."""
        return below(self._whole, self.points[number - 1] if number else None)

    def seed_of(self, name: str) -> int:
        """A seed for one stage."""
        return derived_seed(self._course.seed, "stage", name)

    def run(
        self,
        name: str,
        objective: str,
        module: nn.Module,
        batches: EpochSource,
        step: Step,
        validate: Validate,
        options: Options | None = None,
        *,
        seed: int | None = None,
        until: int | None = None,
        keep: bool = False,
    ) -> ModuleHistory:
        """Train one module towards its objective, with the course's options unless said.

        ``until`` and ``keep`` are those of :meth:`Course.run`.
        """
        options = options or self._course.options

        def told(callback: Callable[[Moment], Any]) -> Callable[[Moment], Any]:
            def tell(moment: Moment) -> Any:
                before = sum(done for stage, done in self._epochs.items() if stage != name)
                epoch = before + moment.epoch
                return callback(Moment(epoch, self._whole.module, moment.measures, name))

            return tell

        rows = self._course.run(
            module,
            batches,
            step,
            validate=validate,
            seed=self.seed_of(name) if seed is None else seed,
            label=f"{self._course.tasks[0].name}, {name}",
            stage=name,
            options=replace(options, callbacks=tuple(map(told, options.callbacks))),
            until=until,
            keep=keep,
        )
        self._epochs[name] = len(rows)
        return ModuleHistory(name, objective, rows, kept_epoch(rows, options.patience))

    def fit(self, start: Part, histories: Sequence[ModuleHistory]) -> Fit:
        """The trained modules, the network that they make, and how each was trained."""
        course = self._course
        record = ModularTraining(
            part=self._whole.described,
            task=course.tasks[0].name,
            modules=tuple(histories),
            settings=course.settings,
        )
        trained = course.finished(self._whole, [start], record.final)
        names = (*(f"module{i + 1}" for i in range(len(self.points))), HEAD)
        return Fit(cut_all(trained, at=self.points), record, trained, names=names)


def chosen_points(whole: Part, at: At | None) -> tuple[str, ...]:
    """The names of the points to cut at; without any said, the one before the output layer.

    >>> from dovetail.parts.part import build
    >>> chosen_points(build("lenet5"), None), chosen_points(build("lenet5"), ["conv2", "fc2"])
    (('fc2',), ('conv2', 'fc2'))
    """
    if at is None:
        return (output_point(whole.module),)
    named = (at,) if isinstance(at, str | CutPoint) else tuple(at)
    if not named:
        raise CutError(
            f"{argument('at', ...)} names no point; leave it out to cut before the output layer"
        )
    return tuple(str(place) for place in named)


def trainable(module: nn.Module) -> bool:
    """Whether there is a weight to train.

    >>> trainable(nn.Linear(1, 1)), trainable(nn.ReLU())
    (True, False)
    """
    return any(p.requires_grad for p in module.parameters())


def _refuse_unfit(modules: Sequence[Part], at: Sequence[str]) -> None:
    """Refuse modules that hand over several tensors, or that leave nothing to train."""
    for module, place in zip(modules, at, strict=False):
        if len(module.contract.gives) > 1:
            raise CutError(
                f"{len(module.contract.gives)} tensors cross at {place!r}, and a kernel is of one; "
                "take a point that dt.cut_points lists"
            )
    if not trainable(modules[-1].module):
        raise TrainingError(
            f"behind {at[-1]!r} there is no weight to train; the output module needs one"
        )


def stage_file(file: str | Path | None, stage: str) -> Path | None:
    """A stage's own checkpoint, named after the one that was asked for.

    >>> print(stage_file("runs/net.safetensors", "module1"))
    runs/net.module1.safetensors
    """
    if file is None:
        return None
    path = Path(file)
    return path.with_name(f"{path.stem}.{stage}{path.suffix}")
