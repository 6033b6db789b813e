"""The console command `mmattn`.

`mmattn train` and `tools/train.py` both run `mmattn.cli.train.main`, and so do the
other commands that are tools.
"""

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from mmattn.errors import UserError

RUNS = 'work_dirs'  # where training writes
FORWARDED = dict(
    add_help_option=False,
    context_settings=dict(
        allow_extra_args=True, ignore_unknown_options=True, help_option_names=[]
    ),
)
app = typer.Typer(
    name='mmattn',
    help='Train and run efficient-attention detectors, segmentors and classifiers.',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help='Check, convert and download data sets.', no_args_is_help=True)
app.add_typer(data, name='data')


def run_main_of(module: str, context: typer.Context):
    """Run the `main` of a module as its tool does, with the arguments of a command."""
    from mmattn.cli.terminal import run_main

    sys.argv = [context.command_path, *context.args]  # help and errors name argv[0]
    run_main(import_module(f'mmattn.{module}').main)


def fail(message: Exception | str):
    """Print an error of the user as the tools do, and exit with 1."""
    typer.echo(f'mmattn: {message}', err=True)
    raise typer.Exit(1)


@app.command()
def predict(
    model: Annotated[
        str,
        typer.Argument(
            help='Work dir of a run, config, name of a config, checkpoint in a work '
            "dir, exported .onnx, .pt2 or .xml file, or a demo's weights "
            '(mmattn/hela-ivit-n).'
        ),
    ],
    images: Annotated[
        list[str],
        typer.Argument(help='Images, videos, folders, patterns or addresses.'),
    ],
    weights: Annotated[
        str | None,
        typer.Option(help="Checkpoint; of a work dir also 'best' or 'last'."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help='Config of a work dir or checkpoint that comes from elsewhere. It is '
            'code: read it first.'
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help='Folder of the results.')] = Path(
        'predictions'
    ),
    score: Annotated[
        float, typer.Option(help='Lowest score of an object.', min=0, max=1)
    ] = 0.3,
    device: Annotated[
        str | None, typer.Option(help="Such as 'cpu' or 'cuda:0'.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help='Images at a time.', min=1)] = 1,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Factor of an image's sides in place of the config's resize."
        ),
    ] = None,
    tile: Annotated[
        int | None, typer.Option(help='Cut images into tiles of this side.', min=1)
    ] = None,
    overlap: Annotated[
        float, typer.Option(help='Share of a tile in common with the next.')
    ] = 0.2,
    draw: Annotated[bool, typer.Option(help='Draw the results.')] = True,
    skip_broken: Annotated[
        bool, typer.Option('--skip-broken', help='Warn of files that cannot be read.')
    ] = False,
    max_megapixels: Annotated[
        float, typer.Option(help='Pixels of an image that are accepted, in millions.')
    ] = 89,
    cfg_options: Annotated[
        list[str] | None,
        typer.Option(help='Entry of the config to override, key=value; repeatable.'),
    ] = None,
    trust_checkpoint: Annotated[
        bool,
        typer.Option(
            '--trust-checkpoint',
            help='Let the checkpoint run the code that it contains.',
        ),
    ] = False,
):
    """Predict objects, label maps or classes, and draw them.

    Writes drawn images or videos, and `predictions.json`: annotations of COCO for
    detection and segmentation, the best classes for classification. Label maps are also
    written as PNG files.
    """
    try:
        from mmattn.apis.predictor import Predictor
        from mmattn.apis.writing import parse_options, write_predictions
    except ImportError as error:
        fail(error)
    try:
        predictor = Predictor(
            model,
            weights,
            device,
            cfg_options=parse_options(cfg_options or ()),
            config=config,
            trust_checkpoint=trust_checkpoint,
        )
        summary = write_predictions(
            predictor,
            images,
            out,
            score=score,
            draw=draw,
            batch_size=batch_size,
            scale=scale,
            tile=tile,
            overlap=overlap,
            skip_broken=skip_broken,
            max_megapixels=max_megapixels,
            progress=sys.stderr.isatty(),
        )
    except (UserError, OSError) as error:
        fail(error)
    typer.echo(summary)


@app.command()
def web(
    model: Annotated[
        str,
        typer.Argument(
            help='Work dir of a run, a folder of work dirs, config, name of a config, '
            "exported .onnx, .pt2 or .xml file, or a demo's weights "
            '(mmattn/hela-ivit-n).'
        ),
    ] = RUNS,
    weights: Annotated[
        str | None,
        typer.Argument(help="Checkpoint; of a work dir also 'best' or 'last'."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(help='Another model to choose, like MODEL; repeatable.'),
    ] = None,
    compare_weights: Annotated[
        list[str] | None,
        typer.Option(help='Checkpoint of --compare, in the same order.'),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help='Folder of images to choose from.')
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Such as 'cpu' or 'cuda:0'.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(help='Address to listen on; 0.0.0.0 opens the page to others.'),
    ] = '127.0.0.1',
    port: Annotated[
        int | None,
        typer.Option(help='Port; by default the first free one from 7860.', min=1),
    ] = None,
    max_megapixels: Annotated[
        float, typer.Option(help='Largest image, in millions of pixels.', min=0.01)
    ] = 32.0,
    max_megabytes: Annotated[
        int, typer.Option(help='Largest upload, in millions of bytes.', min=1)
    ] = 64,
    trust_checkpoint: Annotated[
        bool,
        typer.Option(
            '--trust-checkpoint',
            help='Let the checkpoint run the code that it contains.',
        ),
    ] = False,
):
    """Open a page in the browser: predict, look inside, compare two models.

    The page is reachable only from this machine unless --host says otherwise.
    """
    try:
        from mmattn.web.models import Models, Source, offered_models
        from mmattn.web.photos import images_in
        from mmattn.web.server import check_installed, serve

        check_installed()
    except ImportError as error:
        fail(error)
    try:
        if model == RUNS and not Path(model).is_dir():
            raise FileNotFoundError(
                f'there is no folder {RUNS}: pass a work dir, a config with its '
                'weights, or an exported file'
            )
        others, checkpoints = compare or [], compare_weights or []
        if checkpoints and len(checkpoints) != len(others):
            raise UserError(
                f'--compare-weights must be given as often as --compare, got '
                f'{len(checkpoints)} and {len(others)}'
            )
        checkpoints = checkpoints or [None] * len(others)
        sources = [Source(model, weights)]
        sources += [Source(*pair) for pair in zip(others, checkpoints, strict=True)]
        models = Models(offered_models(sources), device, trust_checkpoint)
        models[models.names[0]]  # tells of a wrong path now rather than in the browser
        serve(
            models,
            images_in(images) if images else None,
            host=host,
            port=port,
            max_megapixels=max_megapixels,
            max_megabytes=max_megabytes,
        )
    except (UserError, OSError) as error:
        fail(error)


@app.command(**FORWARDED)
def train(context: typer.Context):
    """Train the model of a config."""
    run_main_of('cli.train', context)


@app.command(**FORWARDED)
def test(context: typer.Context):
    """Evaluate a work dir, or a config and a checkpoint."""
    run_main_of('cli.test', context)


@app.command(**FORWARDED)
def report(context: typer.Context):
    """Write a report of a work dir: figures, times, curves and pictures."""
    run_main_of('cli.report', context)


@app.command(**FORWARDED)
def export(context: typer.Context):
    """Write a work dir, or a config and a checkpoint, as ONNX or torch.export."""
    run_main_of('cli.export', context)


@app.command(**FORWARDED)
def run(context: typer.Context):
    """Run another package's script, such as mmdet's train.py, after `import mmattn`."""
    script, *arguments = context.args or [None]
    if script is None or not Path(script).is_file():
        fail(FileNotFoundError(f'`mmattn run` takes a Python script, got {script!r}'))
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name='__main__')


@app.command(**FORWARDED)
def flops(context: typer.Context):
    """Print parameters and FLOPs, module by module."""
    run_main_of('cli.flops', context)


@app.command(**FORWARDED)
def weights(context: typer.Context):
    """List, download and verify published weights."""
    run_main_of('cli.weights', context)


@app.command(**FORWARDED)
def env(context: typer.Context):
    """Print versions, backends and problems of this environment."""
    run_main_of('cli.env', context)


@data.command(**FORWARDED)
def check(context: typer.Context):
    """Check the data sets of a config as training does."""
    run_main_of('data.check', context)


@data.command(**FORWARDED)
def convert(context: typer.Context):
    """Turn your own annotated images into a data set with a config."""
    run_main_of('data.convert', context)


@data.command(**FORWARDED)
def prepare(context: typer.Context):
    """Download COCO or ADE20K, or lay out ImageNet."""
    run_main_of('data.prepare', context)


@app.command()
def models(
    search: Annotated[
        str | None,
        typer.Option(help='List names, tasks or papers with this text only.'),
    ] = None,
    names: Annotated[
        bool, typer.Option('--names', help='Print one name a line, and nothing else.')
    ] = False,
):
    """List the configs with their parameters, FLOPs and papers' results."""
    from mmattn.apis.model_index import list_models, models_table

    found = list_models(search)
    if not found:
        fail(f'no model matches {search!r}; `mmattn models` lists all')
    if names:
        typer.echo('\n'.join(model.name for model in found))
        return
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 160).print(models_table(found))


def main():
    """Run the command."""
    app(prog_name='mmattn')  # also as `python -m mmattn`, whose completion has no name
