"""Download COCO, ADE20K or ImageNet and lay it out as our configs expect it.

    mmattn data prepare coco
    mmattn data prepare ade20k
    mmattn data prepare imagenet --archives FOLDER_OF_THE_TAR_FILES

An interrupted download continues when the command is repeated. Files are checked by the
MD5 that is published for them. Parts that are complete are skipped.

ImageNet is given only to registered users, so its files cannot be downloaded here. Get
ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz from
https://image-net.org and name their folder with --archives.
"""

import argparse
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from mmattn.errors import UserError

from ..cli.terminal import command_parser
from ..files.folders import stage
from ..weights.download import download

GB = 10**9


@dataclass(frozen=True)
class Archive:
    """A zip file that holds one folder.

    Args:
        part: name that `--parts` accepts.
        url: address of the file.
        md5: published hex digest.
        gigabytes: size of the file.
        folder: the folder that the file holds.
        images: number of files in folders of images, by their path.
    """

    part: str
    url: str
    md5: str
    gigabytes: float
    folder: str
    images: dict[str, int]


# The bucket of images.cocodataset.org, which has no certificate of its own.
COCO = 'https://s3.amazonaws.com/images.cocodataset.org'
ADE = 'https://data.csail.mit.edu/places/ADEchallenge'
DATA_SETS = {
    'coco': (
        'data/coco',
        (
            Archive(
                'annotations',
                f'{COCO}/annotations/annotations_trainval2017.zip',
                'f4bbac642086de4f52a3fdda2de5fa2c',
                0.25,
                'annotations',
                {},
            ),
            Archive(
                'val',
                f'{COCO}/zips/val2017.zip',
                '442b8da7639aecaf257c1dceb8ba8c80',
                0.82,
                'val2017',
                {'val2017': 5000},
            ),
            Archive(
                'train',
                f'{COCO}/zips/train2017.zip',
                'cced6f7f71b7629ddf16f17bbcfab6b2',
                19.3,
                'train2017',
                {'train2017': 118287},
            ),
        ),
    ),
    'ade20k': (
        'data/ade',
        (
            Archive(
                'all',
                f'{ADE}/ADEChallengeData2016.zip',
                '7328b3957e407ddae1d3cbf487f149ef',
                0.97,
                'ADEChallengeData2016',
                {
                    f'ADEChallengeData2016/{kind}/{split}': count
                    for kind in ('images', 'annotations')
                    for split, count in (('training', 20210), ('validation', 2000))
                },
            ),
        ),
    ),
}
IMAGENET = 'data/imagenet'
IMAGENET_IMAGES = {'train': 1281167, 'val': 50000}


def unpack(file: Path, folder: str, out: Path) -> None:
    """Extract the folder of a zip file to `out / folder`, which appears when complete.

    Raises:
        ValueError: the file holds anything else, or is damaged.
    """
    try:
        with zipfile.ZipFile(file) as archive, stage(out / folder) as partial:
            names = [n for n in archive.namelist() if not n.startswith('__MACOSX')]
            others = {name.partition('/')[0] for name in names} - {folder}
            if others or not names:
                raise UserError(
                    f'{file} must hold {folder}/ only, got {sorted(others)}'
                )
            for name in tqdm(names, f'unpack {folder}', disable=None):
                archive.extract(name, partial)
            for path in (partial / folder).iterdir():
                path.rename(partial / path.name)
            (partial / folder).rmdir()
    except zipfile.BadZipFile as error:
        raise UserError(f'{file} is damaged: {error}') from error


def check_space(folder: Path, gigabytes: float) -> None:
    """Raise an error if the disk of a folder has less space than is needed."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GB
    if free < gigabytes:
        raise UserError(
            f'{gigabytes:.1f} GB are needed in {folder.resolve()}, but {free:.1f} GB '
            'are free; choose another disk with --out and --archives'
        )


def check_counts(out: Path, images: dict[str, int]) -> None:
    """Raise an error if a folder has another number of files than published."""
    for folder, expected in images.items():
        found = sum(1 for path in (out / folder).rglob('*') if path.is_file())
        if found != expected:
            raise UserError(
                f'{out / folder} has {found} files, expected {expected}; remove the '
                'folder and repeat the command'
            )


def prepare(
    archives: Sequence[Archive], out: Path, cache: Path, *, keep: bool = False
) -> None:
    """Download and unpack archives into `out`.

    Args:
        archives: files to get, in order.
        out: folder of the data set.
        cache: folder of the downloads.
        keep: whether to keep the archives after they are unpacked.
    """
    for archive in archives:
        if not (out / archive.folder).exists():
            check_space(out, 2.1 * archive.gigabytes)
            file = cache / Path(archive.url).name
            download(archive.url, file, archive.md5, resume=True)
            unpack(file, archive.folder, out)
            if not keep:
                file.unlink()
        check_counts(out, archive.images)
        print(f'{out / archive.folder} is complete')


def prepare_imagenet(archives: Path, out: Path, images: dict[str, int]) -> None:
    """Unpack the three files of ImageNet-1k into `out/train` and `out/val`.

    torchvision checks their MD5 and sorts the images into a folder for each class.

    Raises:
        ValueError: a file is missing or damaged.
    """
    from torchvision.datasets import imagenet

    check_space(out, 150)
    try:
        for split, parse in (
            ('train', imagenet.parse_train_archive),
            ('val', imagenet.parse_val_archive),
        ):
            if not (out / split).exists():
                with stage(out / split) as partial:
                    imagenet.parse_devkit_archive(archives)
                    parse(archives, folder=str(partial.resolve()))
            print(f'{out / split} is complete')
    except RuntimeError as error:  # torchvision names the file
        raise UserError(str(error)) from error
    check_counts(out, images)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('dataset', choices=[*DATA_SETS, 'imagenet'])
    parser.add_argument('--out', type=Path, help="default: our configs' folder")
    parser.add_argument(
        '--archives',
        type=Path,
        default=Path('data/.cache'),
        help='folder of the downloaded files, default %(default)s',
    )
    parser.add_argument(
        '--parts',
        nargs='+',
        metavar='PART',
        help='get only these: annotations, val and train of coco',
    )
    parser.add_argument(
        '--mirror',
        metavar='URL',
        help='address of a folder with the same files, instead of the publisher',
    )
    parser.add_argument(
        '--keep', action='store_true', help='keep the downloads after unpacking'
    )
    return parser.parse_args(argv)


def selected(args: argparse.Namespace) -> list[Archive]:
    """Return the archives that the arguments ask for."""
    archives = DATA_SETS[args.dataset][1]
    known = [archive.part for archive in archives]
    unknown = set(args.parts or ()) - set(known)
    if unknown:
        raise UserError(
            f'--parts of {args.dataset} must be among {known}, got {sorted(unknown)}'
        )
    wanted = [a for a in archives if args.parts is None or a.part in args.parts]
    if args.mirror is None:
        return wanted
    base = args.mirror.rstrip('/')
    return [Archive(**vars(a) | {'url': f'{base}/{Path(a.url).name}'}) for a in wanted]


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.dataset == 'imagenet':
        out = args.out or Path(IMAGENET)
        prepare_imagenet(args.archives, out, IMAGENET_IMAGES)
    else:
        out = args.out or Path(DATA_SETS[args.dataset][0])
        prepare(selected(args), out, args.archives, keep=args.keep)
