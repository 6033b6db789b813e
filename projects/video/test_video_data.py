"""Videos: frames by number, sampling, list files, transforms, and damaged files."""

import json
import re
from operator import call

import pytest
from refusals import refuses

pytest.importorskip('mmengine')
pytest.importorskip('av')

import av
import numpy as np
import torch
from mmengine.dataset import Compose

from projects.video.dataset import VideoDataset
from projects.video.pipeline import Torchvision
from projects.video.reader import VideoReader
from projects.video.sampling import (
    SampleDense,
    SampleUniform,
    dense_clips,
    uniform_clips,
)

FRAMES = 30
# Frames before a key frame in time may need it and the group before it.
OPEN = 'open-gop=1:keyint=12:min-keyint=12:bframes=3:b-adapt=0:scenecut=0'


def pictures(count=FRAMES, height=48, width=64):
    """Return frames in which a bright bar moves to the right."""
    frames = np.zeros((count, height, width, 3), np.uint8)
    frames[..., 1] = np.arange(height, dtype=np.uint8)[:, None]
    for t, frame in enumerate(frames):
        frame[:, 2 * t : 2 * t + 4, 0] = 250
    return frames


def write(path, frames, codec='libx264', pix_fmt='yuv420p', options=None, coder=None):
    with av.open(str(path), 'w', options=options or {}) as container:
        stream = container.add_stream(codec, rate=25, options=coder or {})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        stream.codec_context.gop_size = 12
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('videos')
    write(folder / 'h264.mp4', pictures())
    write(folder / 'h264.avi', pictures())
    write(folder / 'fast.mp4', pictures(), options=dict(movflags='faststart'))
    write(folder / 'open.mp4', pictures(), coder={'x264-params': OPEN})
    write(folder / 'raw.h264', pictures())
    write(folder / 'lossless.mkv', pictures(), codec='ffv1', pix_fmt='bgr0')
    return folder


def decode_all(path):
    with av.open(str(path)) as container:
        frames = container.decode(video=0)
        return np.stack([frame.to_ndarray(format='rgb24') for frame in frames])


NAMES = ['h264.mp4', 'open.mp4', 'h264.avi', 'raw.h264', 'lossless.mkv']


@pytest.mark.parametrize('name', NAMES)
def test_frames_by_number_are_those_of_the_whole_video(folder, name):
    """Seeking finds the same frames as decoding from the beginning."""
    reader, frames = VideoReader(folder / name), decode_all(folder / name)
    assert len(reader) == len(frames) == FRAMES
    for indices in ([0], [29], [17, 3, 3, 25], range(29, -1, -1), [10], [21]):
        assert np.array_equal(reader.frames(list(indices)), frames[list(indices)])


def test_lossless_video_is_what_was_written(folder):
    assert np.array_equal(decode_all(folder / 'lossless.mkv'), pictures())


def test_order_of_frames_is_that_of_presentation(folder):
    """The bar moves, also where the codec stores frames in another order."""
    frames = VideoReader(folder / 'h264.mp4').frames(range(FRAMES))
    bars = frames[..., 0].mean(1).argmax(1)
    assert (np.diff(bars) > 0).all()


def damaged(folder, tmp_path, name, change):
    content = bytearray((folder / name).read_bytes())
    path = tmp_path / name
    path.write_bytes(bytes(change(content)))
    return path


def half(content):
    return content[: len(content) // 2]


def overwrite(content):
    """Lose what follows the tables at the beginning."""
    content[-600:-300] = bytes(300)
    return content


@pytest.mark.parametrize(
    'name, change, match',
    [
        ('h264.mp4', half, 'damaged or not a video'),
        ('fast.mp4', half, 'it has .* frames, and its header lists 30'),
        ('h264.mp4', lambda content: b'', 'damaged or not a video'),
        ('h264.mp4', lambda content: b'<html>404</html>', 'damaged or not a video'),
        ('fast.mp4', overwrite, 'damaged'),
    ],
    ids=['half', 'fast half', 'empty', 'page', 'hole'],
)
def test_damaged_videos_name_the_file(folder, tmp_path, name, change, match):
    path = damaged(folder, tmp_path, name, change)
    with pytest.raises(ValueError, match=f'{re.escape(str(path))}.*{match}'):
        VideoReader(path).frames(range(FRAMES))


def test_half_of_a_streamable_video_is_read_up_to_its_end(folder, tmp_path):
    path = damaged(folder, tmp_path, 'lossless.mkv', half)
    reader = VideoReader(path)
    assert 5 < len(reader) < 25
    last = len(reader) - 2
    assert np.array_equal(reader.frames([last])[0], pictures()[last])


def test_other_errors_of_the_reader(folder, tmp_path):
    with pytest.raises(ValueError, match='none.mp4 does not exist'):
        VideoReader(tmp_path / 'none.mp4')
    reader = VideoReader(folder / 'h264.mp4')
    with pytest.raises(ValueError, match='the frames 0 to 29, got 30'):
        reader.frames([3, 30])
    with pytest.raises(ValueError, match='got -1'):
        reader.frames([-1])
    with pytest.raises(ValueError, match='no frame was asked for'):
        reader.frames([])
    path = tmp_path / 'sound.wav'
    with av.open(str(path), 'w') as container:
        stream = container.add_stream('pcm_s16le', rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout='mono')
        sound.rate = 8000
        container.mux(stream.encode(sound))
    with pytest.raises(ValueError, match='no video stream'):
        VideoReader(path)


@pytest.mark.parametrize(
    'total, settings, expected',
    [
        (10, (4, 1, 1), [[3, 4, 5, 6]]),
        (10, (4, 2, 2), [[0, 2, 4, 6], [3, 5, 7, 9]]),
        (10, (4, 3, 3), [[0, 3, 6, 9]] * 3),
        (3, (4, 2, 1), [[0, 2, 2, 2]]),
        (8, (1, 1, 8), [[t] for t in range(8)]),
    ],
)
def test_dense_clips(total, settings, expected):
    assert dense_clips(total, *settings).tolist() == expected


def test_drawn_dense_clips_have_all_starts():
    rng = np.random.default_rng(0)
    clips = dense_clips(10, 4, 2, 300, rng)
    assert set(clips[:, 0]) == {0, 1, 2, 3}
    assert (np.diff(clips) == 2).all()


@pytest.mark.parametrize(
    'total, clip_len, num_clips, expected',
    [
        (16, 4, 1, [[2, 6, 10, 14]]),
        (16, 4, 2, [[1, 5, 9, 13], [3, 7, 11, 15]]),
        (2, 4, 1, [[0, 0, 1, 1]]),
        (5, 5, 1, [[0, 1, 2, 3, 4]]),
    ],
)
def test_uniform_clips(total, clip_len, num_clips, expected):
    assert uniform_clips(total, clip_len, num_clips).tolist() == expected


def test_drawn_uniform_clips_stay_in_their_segments():
    clips = uniform_clips(16, 4, 400, np.random.default_rng(0))
    assert [set(column) for column in clips.T] == [
        set(range(start, start + 4)) for start in (0, 4, 8, 12)
    ]


test_errors_of_settings = refuses(
    call,
    (lambda: SampleDense(0), '`clip_len` must be 1 or more, got 0'),
    (lambda: SampleDense(8, 0), '`interval` must be 1 or more, got 0'),
    (lambda: SampleUniform(8, 0), '`num_clips` must be 1 or more, got 0'),
    (lambda: Torchvision([dict(type='Crop')]), "no transform 'Crop'"),
)


MEAN, STD = [10.0, 20, 30], [2.0, 4, 5]
PIPELINE = [
    dict(type='OpenVideo'),
    dict(type='SampleDense', clip_len=4, interval=2, num_clips=3),
    dict(type='DecodeVideo'),
    dict(type='Torchvision', transforms=[dict(type='CenterCrop', size=[40, 32])]),
    dict(type='NormalizeClips', mean=MEAN, std=STD),
    dict(type='PackClips'),
]


def dataset(folder, **kwargs):
    kwargs = dict(data_root=str(folder), pipeline=PIPELINE, test_mode=True) | kwargs
    return VideoDataset(**kwargs)


def test_list_file_and_pipeline(folder):
    rows = ['lossless.mkv 7', '', ' h264.mp4   0 ', 'a folder/b c.mp4 12']
    (folder / 'list.txt').write_text('\n'.join(rows))
    data = dataset(folder, ann_file='list.txt')
    labels = [data.get_data_info(index)['gt_label'] for index in range(3)]
    assert labels == [7, 0, 12]
    assert data.get_data_info(2)['video_path'] == str(folder / 'a folder/b c.mp4')
    sample = data[0]
    assert sample['inputs'].shape == (3, 3, 4, 40, 32) and sample['labels'] == 7
    times = [[0, 2, 4, 6], [12, 14, 16, 18], [23, 25, 27, 29]]
    expected = pictures()[times][:, :, 4:44, 16:48]  # (V, T, H, W, 3)
    expected = (torch.tensor(expected).float() - torch.tensor(MEAN)) / torch.tensor(STD)
    assert torch.allclose(sample['inputs'], expected.permute(0, 4, 1, 2, 3))


def test_views_are_transformed_apart_and_frames_alike():
    torch.manual_seed(0)
    clips = torch.arange(100.0).expand(8, 5, 3, 20, 100)
    transform = Torchvision([dict(type='RandomCrop', size=10)])
    found = transform(dict(clips=clips))['clips']
    assert found.shape == (8, 5, 3, 10, 10)
    assert (found == found[:, :1, :1]).all()
    assert len({float(view[0, 0, 0, 0]) for view in found}) > 1


def test_draws_follow_the_seed_of_the_sample():
    """mmengine seeds NumPy's generator for each worker."""
    sample = Compose([dict(type='SampleDense', clip_len=1, training=True)])
    found = []
    for seed in (0, 0, 1):
        np.random.seed(seed)
        found.append(int(sample(dict(total_frames=10**6))['frame_indices'][0, 0]))
    assert found[0] == found[1] != found[2]


def write_json(folder, **contents):
    for name, content in contents.items():
        (folder / f'{name}.json').write_text(json.dumps(content))


def test_layout_of_something_something(tmp_path):
    write_json(
        tmp_path,
        labels={'Holding something': '1', 'Pushing something onto something': '0'},
        train=[
            dict(id='78687', label='holding a cup', template='Holding [something]'),
            dict(id='42', template='Pushing [something] onto [something]'),
        ],
    )
    data = dataset(
        tmp_path,
        ann_file='train.json',
        label_file='labels.json',
        data_prefix=dict(video_path='videos'),
    )
    infos = [data.get_data_info(index) for index in range(2)]
    assert [info['gt_label'] for info in infos] == [1, 0]
    assert infos[0]['video_path'] == str(tmp_path / 'videos' / '78687.webm')


@pytest.mark.parametrize(
    'text, match',
    [
        ('a.mp4 0\nb.mp4', r"line 2 of .*list.txt .* got 'b.mp4'"),
        ('a.mp4 x', "line 1 of .* got 'a.mp4 x'"),
        ('a.mp4 -1', "line 1 of .* got 'a.mp4 -1'"),
        ('a.mp4,0', "line 1 of .* got 'a.mp4,0'"),
        ('\n', 'list.txt names no video'),
        (None, 'cannot read .*list.txt: No such file'),
    ],
)
def test_malformed_list_files(tmp_path, text, match):
    if text is not None:
        (tmp_path / 'list.txt').write_text(text)
    with pytest.raises(ValueError, match=match):
        dataset(tmp_path, ann_file='list.txt')


@pytest.mark.parametrize(
    'train, labels, match',
    [
        (
            [dict(id='1', template='Holding [x]')],
            {'Moving x': '0'},
            "'Holding x', which",
        ),
        ([dict(id='1')], {}, 'entry 0 of .*train.json must have `id` and `template`'),
        ({}, {}, 'train.json must be a json list, got a dict'),
        ([], [], 'labels.json must be a json dict, got a list'),
        ([], {}, 'names no video'),
    ],
)
def test_malformed_json(tmp_path, train, labels, match):
    write_json(tmp_path, train=train, labels=labels)
    with pytest.raises(ValueError, match=match):
        dataset(tmp_path, ann_file='train.json', label_file='labels.json')


def test_json_requires_labels(tmp_path):
    write_json(tmp_path, train=[])
    with pytest.raises(ValueError, match='requires `label_file`'):
        dataset(tmp_path, ann_file='train.json')
    (tmp_path / 'labels.json').write_text('{')
    with pytest.raises(ValueError, match='labels.json is not json'):
        dataset(tmp_path, ann_file='train.json', label_file='labels.json')
