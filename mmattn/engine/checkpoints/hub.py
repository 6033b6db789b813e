"""Weights by the names `mmattn://`, `timm://` and `hf://`.

They are the files that `mmattn/weights.yml` lists, those of timm and those of the
Hugging Face hub. huggingface_hub downloads the latter two and keeps them in its cache,
which other programs share. `HF_HOME` moves the cache, and `HF_HUB_OFFLINE=1` reads
nothing else.
"""

from difflib import get_close_matches
from pathlib import Path

from mmattn.errors import MissingPackageError, UserError
from mmattn.files import file_digest

from .published import find_published
from .reader import download_checkpoint

# What models are stored as, the safe format first.
WEIGHTS = 'model.safetensors', 'pytorch_model.bin'
HF_FORM = 'hf://<owner>/<repository>[@<revision>][/<file>]'


def local_checkpoint(name: str | Path) -> Path:
    """Return the local copy of a checkpoint, after downloading it if needed.

    Args:
        name: a path, an http address, or a name of `hf://`, `mmattn://` or `timm://`.

    Raises:
        ValueError: the name begins with another scheme.
    """
    scheme, separated, _ = str(name).partition('://')
    if not separated:
        return Path(name)
    fetch = dict(
        hf=hf_checkpoint,
        http=download_checkpoint,
        https=download_checkpoint,
        mmattn=published_checkpoint,
        timm=timm_checkpoint,
    )
    if scheme not in fetch:
        schemes = ', '.join(f'{each}://' for each in fetch)
        raise UserError(
            f'a checkpoint must be a path or begin with one of {schemes}; got {name}'
        )
    return fetch[scheme](str(name))


def hf_checkpoint(name: str) -> Path:
    """Return the local copy of a file on the hub, after downloading it if needed.

    Args:
        name: `hf://<owner>/<repository>/<file>`. A revision may follow the repository,
            after an `@`. Without a file it is `model.safetensors`, or else
            `pytorch_model.bin`.

    Raises:
        ValueError: the name has another form.
        FileNotFoundError: there is no such file, or it is neither in the cache nor in
            reach.
    """
    owner, _, rest = name.removeprefix('hf://').partition('/')
    repository, _, file = rest.partition('/')
    repository, _, revision = repository.partition('@')
    if not owner or not repository:
        raise UserError(f'a file of the hub is named {HF_FORM}, got {name}')
    files = (file,) if file else WEIGHTS
    return _download(name, f'{owner}/{repository}', revision or None, files)


def timm_checkpoint(name: str) -> Path:
    """Return the local copy of the weights of one of timm's models.

    Args:
        name: `timm://<model>[.<tag>]`, for example `timm://pvt_v2_b2.in1k`. Without a
            tag they are timm's default.

    Raises:
        ValueError: timm has no weights of this name.
        FileNotFoundError: the file is neither in the cache nor in reach.
    """
    try:
        import timm
    except ImportError:
        raise MissingPackageError(f'{name} requires timm: pip install timm') from None
    model = name.removeprefix('timm://')
    if not timm.is_model_pretrained(model):
        known = timm.list_pretrained()
        close = [k for k in known if k.partition('.')[0] == model.partition('.')[0]]
        close = close or get_close_matches(model, known, n=3)
        hint = f'did you mean one of {close}? ' if close else ''
        raise UserError(
            f'timm has no weights {model!r}: {hint}timm.list_pretrained() lists all'
        )
    cfg = timm.get_pretrained_cfg(model)
    if not cfg.hf_hub_id:
        return download_checkpoint(cfg.url)
    repository, _, revision = cfg.hf_hub_id.partition('@')
    files = (cfg.hf_hub_filename,) if cfg.hf_hub_filename else WEIGHTS
    return _download(name, repository, revision or None, files)


def published_checkpoint(name: str) -> Path:
    """Return the local copy of a published file, after downloading it if needed.

    Args:
        name: of the file, with or without `mmattn://`.

    Raises:
        ValueError: no file has this name, or its SHA-256 is not the published one.
        OSError: the file is neither in the cache nor in reach.
    """
    entry = find_published(name)
    path = local_checkpoint(entry['url'])
    published = entry.get('sha256', '')
    digest = file_digest(path) if published else ''
    if not digest.startswith(published):
        raise UserError(
            f'{path} is not {name}: its SHA-256 is {digest}, and that of '
            f'{entry["url"]} begins with {published}. Remove the file to download it '
            'again'
        )
    return path


def _download(
    name: str, repository: str, revision: str | None, files: tuple[str, ...]
) -> Path:
    """Return the first of `files` that the repository has."""
    try:
        from huggingface_hub import constants, errors, hf_hub_download
    except ImportError:
        raise MissingPackageError(
            f'{name} requires huggingface_hub: pip install huggingface_hub'
        ) from None
    missing = (
        errors.EntryNotFoundError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
    )
    reasons = []
    for file in files:
        try:
            return Path(hf_hub_download(repository, file, revision=revision))
        except missing as error:
            reasons.append(f'{file}: {str(error).strip().splitlines()[0]}')
    raise FileNotFoundError(
        f'{name} was not found. {" ".join(reasons)} The cache is '
        f'{constants.HF_HUB_CACHE}'
    )
