"""Report how each tensor was loaded, and check the report against a rule."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mmattn.errors import UserError

LOGGER = logging.getLogger('mmattn')
MIN_BACKBONE_SHARE = 0.9
MIN_RELATED_SHARE = 0.5  # of weights that are listed as a start for a backbone
# A prefix must fit this share of the shorter side's names to be more than chance:
# every model has a name such as `norm.weight`.
MIN_PREFIX_SHARE = 0.5
SHOWN_CHARACTERS = 100  # of a name
SHOWN_NAMES = 6
ALLOW_PARTIAL = (
    'pass --allow-partial-load (allow_partial_load = True in the config) to load it '
    'anyway'
)
OTHER_MODEL = (
    'these are the weights of another model: correct the file in `load_from`, in '
    '`init_cfg` or in the command. docs/weights.md lists public files and their models'
)


def list_names(names: Sequence[str]) -> str:
    """Return the first names, cut and in one line, since a file chooses them."""
    shown = ', '.join(
        (name if name.isprintable() else repr(name))[:SHOWN_CHARACTERS]
        for name in names[:SHOWN_NAMES]
    )
    hidden = len(names) - SHOWN_NAMES
    return f'{shown} and {hidden} more' if hidden > 0 else shown


@dataclass
class LoadReport:
    """Record how each tensor was loaded.

    Attributes:
        sizes: elements of each tensor of the model.
        given: names in the file.
        matched: names in the model whose tensor came from the file.
        resized: names in `matched` whose shape a hook of the model changed, with the
            shapes in the file and in the model.
        missing: names in the model without a tensor of the same shape in the file.
        mismatched: names in `missing` with a tensor of another shape, and both shapes.
        unexpected: names in the file that the model does not have.
    """

    sizes: dict[str, int]
    given: list[str]
    matched: list[str] = field(default_factory=list)
    resized: dict[str, tuple] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    mismatched: dict[str, tuple] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f'{len(self.matched)} of {len(self.sizes)} tensors matched '
            f'({len(self.resized)} resized), {len(self.missing)} missing '
            f'({len(self.mismatched)} for their shape), '
            f'{len(self.unexpected)} unexpected; {self.share():.1%} of the elements'
        )

    def differences(self) -> list[str]:
        """Return one line for each kind of difference, with the names."""
        kinds = {
            'of another shape': [
                f'{key} {old} in the file, {new} in the model'
                for key, (old, new) in self.mismatched.items()
            ],
            'missing in the file': [
                key for key in self.missing if key not in self.mismatched
            ],
            'unexpected in the file': self.unexpected,
        }
        return [
            f'{kind}: {list_names(names)}' for kind, names in kinds.items() if names
        ]

    def log(self, source: str, logger: logging.Logger = LOGGER):
        """Log counts and resizes at INFO, differences at WARNING."""
        logger.info('%s: %s', source, self)
        for name, (old, new) in self.resized.items():
            logger.info('%s: resized %s from %s to %s', source, name, old, new)
        for line in self.differences():
            logger.warning('%s: %s', source, line)

    def share(self, prefix: str = '') -> float:
        """Return the share of elements below `prefix` that was matched."""
        total = sum(n for key, n in self.sizes.items() if key.startswith(prefix))
        matched = sum(self.sizes[key] for key in self.matched if key.startswith(prefix))
        return matched / max(1, total)

    def likely_prefix(self) -> str | None:
        """Describe the change of prefix that would match more names."""
        added = _common_prefix(self.given, self.sizes)
        removed = _common_prefix(self.sizes, self.given)
        (prefix, count), change, remedy = max(
            (added, 'with', 'the weights of a backbone alone belong in its init_cfg'),
            (
                removed,
                'without',
                "init_cfg=dict(type='Pretrained', prefix=...) cuts it",
            ),
            key=lambda choice: choice[0][1],
        )
        least = MIN_PREFIX_SHARE * min(len(self.given), len(self.sizes))
        if count <= len(self.matched) or count < least:
            return None
        return (
            f"{count} names of the file would match {change} '{prefix}.' before them: "
            f'{remedy}'
        )

    def check(
        self,
        source: str,
        *,
        exact: bool,
        part: str = '',
        partial: bool = False,
        least: float = MIN_BACKBONE_SHARE,
        advice: str | None = ALLOW_PARTIAL,
    ):
        """Apply the rules of `mmattn.weights.load`.

        Args:
            exact: for resuming and testing; otherwise fine-tuning.
            part: prefix of the backbone in the model, such as 'backbone.'.
            partial: raise only if nothing matched.
            least: share of the backbone's elements that must match to fine-tune.
            advice: how to load what matches; None where that is not possible.

        Raises:
            ValueError: the rule is broken. The message has the file, the counts, names
                of both sides, and the prefix if another prefix would match.
        """
        problem = self._problem(exact, part, partial, least)
        if problem is None:
            return
        lines = [f'{source} is not loaded: {problem}', str(self), *self.differences()]
        lines.append(self.likely_prefix() or OTHER_MODEL)
        if self.matched and advice is not None:
            lines.append(advice)
        raise UserError('\n  '.join(lines))

    def _problem(
        self, exact: bool, part: str, partial: bool, least: float
    ) -> str | None:
        name = part.removesuffix('.') or 'model'
        if not self.matched:
            return 'nothing in it matches the model'
        if partial:
            return None
        if exact:
            same = not self.missing and not self.unexpected
            return None if same else 'it does not match the model exactly'
        if any(key.startswith(part) for key in self.mismatched):
            return f'tensors of the {name} have another shape'
        share = self.share(part)
        if share < least:
            return f'it holds {share:.0%} of the {name}, and the rest would be noise'
        return None


def _common_prefix(short: Iterable[str], long: Iterable[str]) -> tuple[str, int]:
    """Return the most frequent prefix of `short`'s names in `long`, and its count."""
    short = set(short)
    prefixes = Counter()
    for name in long:
        parts = name.split('.')
        for i in range(1, len(parts)):
            if '.'.join(parts[i:]) in short:
                prefixes['.'.join(parts[:i])] += 1
    return max(prefixes.items(), key=lambda item: item[1], default=('', 0))
