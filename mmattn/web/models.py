"""Find the models that a page offers, and open them when they are chosen."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmattn.errors import UserError, check_choice

from ..apis import Predictor
from ..apis.find import EXPORTED, RANDOM, run_checkpoint, run_config

LOGGER = logging.getLogger('mmattn')
KEPT = 2  # models in memory: a comparison needs two


@dataclass(frozen=True)
class Source:
    """Name what `Predictor` opens a model from."""

    model: str
    weights: str | None = None


def offered_models(sources: Sequence[Source]) -> dict[str, Source]:
    """Return the models to choose from, by the name that the page shows.

    A folder that is no work dir itself stands for the runs and the exported files in
    it, and in its folders.

    Raises:
        FileNotFoundError: such a folder has neither.
        ValueError: weights are given for such a folder.
    """
    found = {}
    for source in sources:
        path = Path(source.model).expanduser()
        for each in _in_folder(path, source) if _is_collection(path) else [source]:
            name = _name(each)
            number = 2
            while name in found:
                name, number = f'{_name(each)} ({number})', number + 1
            found[name] = each
    return found


def _is_collection(path: Path) -> bool:
    if not path.is_dir():
        return False
    try:
        run_config(path)
    except FileNotFoundError:
        return True
    except ValueError:  # several configs; `Predictor` says what to do
        return False
    return False


def _in_folder(folder: Path, source: Source) -> list[Source]:
    if source.weights is not None:
        raise UserError(
            f'weights are for one model, but {folder} is no work dir, as it has no '
            'config (*.py): pass the work dir or the config'
        )
    runs = [path for path in sorted(folder.iterdir()) if _is_run(path)]
    files = [
        path
        for pattern in ('*', '*/*')
        for path in sorted(folder.glob(pattern))
        if path.suffix in EXPORTED and path.is_file()
    ]
    if not runs and not files:
        raise FileNotFoundError(
            f'{folder} has no finished run (a folder with a config and a checkpoint) '
            f'and no exported file {EXPORTED}: pass a work dir, a config with its '
            'weights, or an exported file'
        )
    return [Source(str(path)) for path in runs + files]


def _is_run(path: Path) -> bool:
    if not path.is_dir():
        return False
    try:
        run_config(path), run_checkpoint(path)
    except FileNotFoundError:
        return False
    except ValueError as error:
        LOGGER.warning('left out: %s', error)
        return False
    return True


def _name(source: Source) -> str:
    path = Path(source.model)
    name = path.name if path.suffix in EXPORTED else path.stem or source.model
    return f'random weights: {name}' if source.weights == RANDOM else name


class Models:
    """Open models by name, and keep the last two.

    Args:
        sources: what each model is opened from.
        device, trust_checkpoint: see `Predictor`.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        device: str | None = None,
        trust_checkpoint: bool = False,
    ):
        self.sources, self.device = dict(sources), device
        self.trust_checkpoint = trust_checkpoint
        self._open = OrderedDict()
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        return list(self.sources)

    def __getitem__(self, name: str) -> Predictor:
        """Return a model.

        Raises:
            ValueError: it is not offered, or cannot be opened.
        """
        check_choice('the model', name, self.sources)
        with self._lock:
            if name not in self._open:
                while len(self._open) >= KEPT:
                    self._open.popitem(last=False)
                source = self.sources[name]
                self._open[name] = Predictor(
                    source.model,
                    source.weights,
                    self.device,
                    trust_checkpoint=self.trust_checkpoint,
                )
            self._open.move_to_end(name)
            return self._open[name]
