"""Weights by the names `mmattn://`, `timm://` and `hf://`.

They are the files that `mmattn/weights/names.yml` lists, timm's files and files on the
Hugging Face hub. huggingface_hub downloads the latter two and keeps them in its cache,
which other programs share. `HF_HOME` moves the cache, and `HF_HUB_OFFLINE=1` reads
nothing else.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from mmattn.errors import MissingPackageError, UserError
from mmattn.files import file_digest
from mmattn.weights.names import SCHEME, find_published

from .read import copy_of, download_checkpoint

# What models are stored as, the safe format first.
WEIGHTS = 'model.safetensors', 'pytorch_model.bin'
SCHEMES = 'hf', 'http', 'https', 'mmattn', 'timm'
HF_FORM = 'hf://<owner>/<repository>[@<revision>][/<file>]'


def local_checkpoint(name: str | Path) -> Path:
    """Return the local copy of a checkpoint, after downloading it if needed.

    Args:
        name: a path, an http address, or a name of `hf://`, `mmattn://` or `timm://`.

    Raises:
        ValueError: the name begins with another scheme, nothing has this name, or the
            file is another one or no checkpoint.
        FileNotFoundError: there is no such file.
        ConnectionError: it is neither in the cache nor in reach.
    """
    if '://' not in str(name):
        return Path(name)
    name = str(name)
    source = find_source(name)
    published = find_published(name) if name.startswith(SCHEME) else {}
    expected = published.get('sha256', '')
    if isinstance(source, str):
        return download_checkpoint(source, sha256=expected)
    path = _download(name, source)
    if expected and not (digest := file_digest(path)).startswith(expected):
        raise UserError(
            f'{path} is not {name}: its SHA-256 is {digest}, not {expected}'
        )
    return path


def place_in_cache(name: str) -> tuple[Path, bool]:
    """Return where a file is kept, and whether it is there, without a network.

    Args:
        name: an http address, or a name of `hf://`, `mmattn://` or `timm://`.

    Returns:
        The path, or the repository's folder of a file of the hub that is not there.

    Raises:
        ValueError: see `local_checkpoint`.
    """
    source = find_source(name)
    if isinstance(source, str):
        path = copy_of(source)
        return path, path.is_file()
    hub = _import_hub(name)
    for file in source.files:
        path = hub.try_to_load_from_cache(
            source.repository, file, hub.constants.HF_HUB_CACHE, source.revision
        )
        if isinstance(path, str):
            return Path(path), True
    folder = f'models--{source.repository.replace("/", "--")}'
    return Path(hub.constants.HF_HUB_CACHE, folder), False


@dataclass(frozen=True)
class HubFile:
    """A file of the Hugging Face hub: the first of `files` that the repository has."""

    repository: str
    revision: str | None = None
    files: tuple[str, ...] = WEIGHTS


def find_source(name: str) -> str | HubFile:
    """Return the http address or the file of the hub that a name stands for.

    Raises:
        ValueError: see `local_checkpoint`.
    """
    scheme = name.partition('://')[0]
    if scheme == 'mmattn':
        return find_source(find_published(name)['url'])
    if scheme == 'timm':
        return _timm_source(name)
    if scheme == 'hf':
        return _hub_source(name)
    if scheme not in ('http', 'https'):
        schemes = ', '.join(f'{each}://' for each in SCHEMES)
        raise UserError(
            f'a checkpoint must be a path or begin with one of {schemes}; got {name}'
        )
    return name


def _hub_source(name: str) -> HubFile:
    owner, _, rest = name.removeprefix('hf://').partition('/')
    repository, _, file = rest.partition('/')
    repository, _, revision = repository.partition('@')
    if not owner or not repository:
        raise UserError(f'a file of the hub is named {HF_FORM}, got {name}')
    files = (file,) if file else WEIGHTS
    return HubFile(f'{owner}/{repository}', revision or None, files)


def _timm_source(name: str) -> str | HubFile:
    """Return the source of `timm://<model>[.<tag>]`, without a tag timm's default."""
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
        return cfg.url
    repository, _, revision = cfg.hf_hub_id.partition('@')
    files = (cfg.hf_hub_filename,) if cfg.hf_hub_filename else WEIGHTS
    return HubFile(repository, revision or None, files)


def _import_hub(name: str):
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise MissingPackageError(
            f'{name} requires huggingface_hub: pip install huggingface_hub'
        ) from None
    return huggingface_hub


def _download(name: str, source: HubFile) -> Path:
    hub = _import_hub(name)
    missing = (
        hub.errors.EntryNotFoundError,
        hub.errors.RepositoryNotFoundError,
        hub.errors.RevisionNotFoundError,
    )
    reasons, offline = [], False
    for file in source.files:
        try:
            return Path(
                hub.hf_hub_download(
                    source.repository,
                    file,
                    revision=source.revision,
                    local_files_only=offline,
                )
            )
        except missing as error:
            if not offline:
                reasons.append(f'{file}: {str(error).strip().splitlines()[0]}')
            # After one vain wait for the network, the cache alone may have the other.
            offline |= isinstance(error, hub.errors.LocalEntryNotFoundError)
    kind, what = FileNotFoundError, 'not found'
    if offline:
        kind, what = ConnectionError, 'neither in reach nor in the cache'
    raise kind(
        f'{name} is {what}. {" ".join(reasons)} The cache is '
        f'{hub.constants.HF_HUB_CACHE}'
    )
