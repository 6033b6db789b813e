"""Check in each of several trees that everything knows a family of backbones.

    python family_checks.py NAME CLASS CONFIG < trees.json

The current folder is a checkout. Each tree is a list of [file, text] pairs that differ
in it, with a text of null for a file that is absent. The output is a JSON list of the
first problem of each tree, or null.
"""

import importlib
import json
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True


def first_problem(name: str, cls: str, config: str) -> str | None:
    """Return what is wrong with the family, or None; cheap checks come first."""
    if problem := documents_problem(Path(), name, cls):
        return problem

    from mmattn.analysis.paper_tables import papers
    from tools.dev import generate_model_zoo as model_zoo

    if not Path(f'configs/{config}.py').is_file():
        return 'no config'
    if found := model_zoo.problems(papers()):
        return found[0]

    from recipe_backbones import TYPES, backbone

    if name not in TYPES:
        return 'no type in the recipes'
    own = model_zoo.load(model_zoo.ROOT / f'configs/{config}.py').model.backbone
    if own.to_dict() != backbone(config):
        return 'the config has another backbone than the recipe'

    from mmattn.registry import MODELS

    if own.type.removeprefix('mmattn.') not in dir(import_models()):
        return 'not exported'
    MODELS.build(own)
    return outdated(config)


def documents_problem(root: Path, name: str, cls: str) -> str | None:
    """Return which test or page lacks the backbone `cls` of the file `name`."""
    if not (root / f'tests/test_models/test_{name}.py').is_file():
        return f'{cls} has no test'
    for page in ('README.md', 'docs/citations.md'):
        if f'`{cls}`' not in (root / page).read_text():
            return f'{cls} is not in {page}'
    page = root / f'docs/models/{name}.md'
    if not page.is_file() or f'<!-- sizes {cls} -->' not in page.read_text():
        return f'{cls} has no page'
    return None


def import_models():
    import mmattn.models

    return mmattn.models


def outdated(config: str) -> str | None:
    """Generate the metafile and the model zoo, and look for the config in both."""
    from tools.dev import generate_model_zoo as model_zoo

    folder, leaf = config.split('/')
    metafile = model_zoo.ROOT / f'configs/{folder}/metafile.yml'
    counts = model_zoo.counts_in(metafile)
    counts[leaf] = model_zoo.count(f'configs/{config}.py')
    metafile.write_text(model_zoo.metafile_text(metafile, counts))
    if leaf not in model_zoo.counts_in(metafile):
        return 'not in the metafile'
    zoo = model_zoo.with_tables(model_zoo.ROOT / 'docs/model_zoo.md')
    return None if f'[{leaf}](' in zoo else 'not in the model zoo'


def forked(check) -> str | None:
    """Return the result of a check that a child process runs, or its error."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return json.loads(text) if text else 'crashed'
    try:
        result = check()
    except (AttributeError, ImportError, KeyError, ValueError) as error:
        result = f'{type(error).__name__}: {error}'
    os.write(writing, json.dumps(result).encode())
    os._exit(0)


def main():
    # The children share what is slow to import.
    for name in ('mmengine.config', 'mmengine.model', 'timm.layers', 'torchvision'):
        importlib.import_module(name)
    results = []
    for changes in json.load(sys.stdin):
        kept = {}
        for file, text in changes:
            path = Path(file)
            kept[path] = path.read_text() if path.is_file() else None
            write(path, text)
        results.append(forked(lambda: first_problem(*sys.argv[1:4])))
        for path, text in kept.items():
            write(path, text)
    print(json.dumps(results))


def write(path: Path, text: str | None):
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(text)


if __name__ == '__main__':
    main()
