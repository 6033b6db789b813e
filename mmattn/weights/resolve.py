"""The one resolver of names of weights, wherever weights are named.

A name is one of

    PATH                      a file
    NAME, mmattn://NAME       a file of `mmattn/weights/names.yml`, or a demo's weights
    timm://MODEL[.TAG]        weights of timm
    hf://OWNER/REPOSITORY     a file of the Hugging Face hub
    http://..., https://...   an address

A file is meant rather than a NAME where both exist. huggingface_hub downloads the files
of timm and of the hub and keeps them in its cache, which other programs share.
`HF_HOME` moves the cache, and `HF_HUB_OFFLINE=1` reads nothing else.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from mmattn.errors import UserError, import_optional
from mmattn.files import file_digest

from .names import (
    DEMOS,
    SCHEME,
    demo_weights,
    find_published,
    hint,
    is_name,
)
from .read import copy_of, download_checkpoint, read_checkpoint

# What models are stored as, the safe format first.
WEIGHTS = 'model.safetensors', 'pytorch_model.bin'
SCHEMES = 'hf', 'http', 'https', 'mmattn', 'timm'
HF_FORM = 'hf://<owner>/<repository>[@<revision>][/<file>]'


def local_checkpoint(name: str | Path) -> Path:
    """Return the local copy of a checkpoint, after downloading it if needed.

    Args:
        name: one of those above.

    Raises:
        ValueError: the name begins with another scheme, nothing has this name, or the
            file is another one or no checkpoint.
        FileNotFoundError: there is no such file, nor weights of this name.
        ConnectionError: it is neither in the cache nor in reach.
    """
    name = str(name)
    source = find_source(name)
    if isinstance(source, Path):
        return source
    bare = name.removeprefix(SCHEME)
    expected = find_published(bare).get('sha256', '') if is_name(bare) else ''
    if isinstance(source, str):
        return download_checkpoint(source, sha256=expected)
    path = _download(name, source)
    if expected and not (digest := file_digest(path)).startswith(expected):
        raise UserError(
            f'{path} is not {name}: its SHA-256 is {digest}, not {expected}'
        )
    return path


def read_named(name: str | Path, map_location='cpu'):
    """Return the content of a checkpoint, see `local_checkpoint` and `read_checkpoint`.

    Args:
        name: one of those above.
        map_location: as for `torch.load`.
    """
    path = local_checkpoint(name)
    is_path = Path(name).expanduser() == path
    source = str(name) if is_path else f'{name} (kept at {path})'
    return read_checkpoint(path, map_location, source)


def check_name(name: str):
    """Raise what `local_checkpoint` would, as far as it is known without a network.

    The schemes that only mmengine reads, such as `s3://` and `open-mmlab://`, pass.

    Raises:
        ValueError, FileNotFoundError: see `local_checkpoint`.
    """
    scheme, separator, _ = name.partition('://')
    if not separator or scheme in SCHEMES:
        find_source(name)


def place_in_cache(name: str) -> tuple[Path, bool]:
    """Return where a file is kept, and whether it is there, without a network.

    Args:
        name: one of those above.

    Returns:
        The path, or the repository's folder of a file of the hub that is not there.

    Raises:
        ValueError: see `local_checkpoint`.
    """
    source = find_source(name)
    if isinstance(source, Path):
        return source, True
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


def find_source(name: str) -> Path | str | HubFile:
    """Return the file, the http address or the file of the hub that a name stands for.

    Raises:
        ValueError, FileNotFoundError: see `local_checkpoint`.
    """
    scheme, separator, rest = name.partition('://')
    if not separator:
        path = Path(name).expanduser()
        if path.is_file():
            return path
        if not is_name(name):
            raise FileNotFoundError(
                f'there is no checkpoint at {name}, and no weights have this name: '
                f'{hint(name)}'
            )
        scheme, rest = 'mmattn', name
    if scheme == 'mmattn':
        if rest in DEMOS:
            return demo_weights(rest)
        return find_source(find_published(rest)['url'])
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
    timm = import_optional(f'{name} requires timm: pip install timm', 'timm')
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
    hub = 'huggingface_hub'
    message = f'{name} requires {hub}: pip install {hub}'
    return import_optional(message, f'{hub}.constants', f'{hub}.errors', hub)


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
