"""List the models of our model index."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from rich.table import Table

from ..files.config_files import config_folder

LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


@dataclass
class Model:
    """A config of the model index, or a demo.

    Attributes:
        name: path of the config below `configs`, without the suffix.
        params: number of parameters, or None.
        flops: multiply-accumulates, or None.
        paper: title of its paper.
        metrics: the paper's results by the name of the metric.
    """

    name: str
    params: int | None = None
    flops: int | None = None
    paper: str = ''
    metrics: dict[str, float] = field(default_factory=dict)


def list_models(search: str | None = None) -> list[Model]:
    """Return the models whose name or paper has a text, ignoring case."""
    folder = config_folder()
    metafiles = sorted(folder.glob('*/metafile.yml'))
    found = [model for path in metafiles for model in _models_in(path)]
    listed = {model.name for model in found}
    for path in sorted(folder.glob('demo/*.py')):
        name = path.relative_to(folder).with_suffix('').as_posix()
        if name not in listed:
            found.append(Model(name))
    text = (search or '').lower()
    return [
        model for model in found if text in model.name or text in model.paper.lower()
    ]


def _models_in(path: Path) -> list[Model]:
    content = yaml.load(path.read_text(), LOADER)
    papers = {
        each['Name']: (each.get('Paper') or {}).get('Title', '')
        for each in content['Collections']
    }
    found = []
    for each in content['Models']:
        facts = each.get('Metadata', {})
        metrics = {}
        for result in each.get('Paper Results', ()):
            metrics |= result['Metrics']
        name = each['Config'].removeprefix('configs/').removesuffix('.py')
        found.append(
            Model(
                name,
                facts.get('Parameters'),
                facts.get('FLOPs'),
                papers.get(each['In Collection'], ''),
                metrics,
            )
        )
    return found


def models_table(models: Sequence[Model]) -> Table:
    """Return a table of models. The metrics are the papers', not ours."""
    table = Table(box=None, pad_edge=False, header_style='bold')
    table.add_column('config', no_wrap=True)
    table.add_column('parameters', justify='right')
    table.add_column('FLOPs', justify='right')
    table.add_column("the paper's result")
    table.add_column('paper')
    for model in models:
        table.add_row(
            model.name,
            '' if model.params is None else f'{model.params / 1e6:.1f} M',
            '' if model.flops is None else f'{model.flops / 1e9:.1f} G',
            ', '.join(f'{name} {value}' for name, value in model.metrics.items()),
            model.paper,
        )
    return table
