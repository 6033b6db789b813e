"""A file cannot make more of an allowed global than the data that it stands for."""

import copy
import gc
import pickle
import tarfile
import tracemalloc
import zipfile
from argparse import Namespace
from codecs import encode
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from string import capwords
from time import process_time

import mmengine.runner  # noqa: F401  from whose import on logs become HistoryBuffer
import numpy as np
import pytest
import torch
from calls import Calls
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer

from mmattn.engine import UntrustedCheckpointError, read_checkpoint
from mmattn.weights.load import find_weights

POINTER = (0x4141414141).to_bytes(8, 'little')
REBUILD = np.zeros(1).__reduce__()[0]
RETYPE = torch._tensor._rebuild_from_type_v2


class Hiding:
    """Pickles as a state dict with an attribute in the place of a method."""

    def __reduce__(self):
        state = dict(items=OrderedDict, _metadata=OrderedDict())
        return OrderedDict, (), state, None, iter([('w', 1)])


def array(dtype, shape=(1,), data=POINTER):
    return Calls(REBUILD, np.ndarray, (0,), b'b', state=(1, shape, dtype, False, data))


def history(log, count, length=9):
    state = dict(_log_history=log, _count_history=count, max_length=length)
    return Calls(HistoryBuffer, state=state)


DOUBLE, ONE = np.dtype('f8'), torch.ones(1)
SCALAR = np.float64(1).__reduce__()[0]
HOSTILE = {
    'dtype-in-a-namespace': array(Namespace(dtype='O')),
    'class-in-slots': array(Calls(Namespace, state=(None, {'__class__': np.dtype}))),
    'dtype-of-objects': array(Calls(np.dtype, 'O')),
    'dtype-of-no-size': array(Calls(np.dtype, 'S0'), (1 << 40,), b''),
    'dtype-spec-is-no-text': array(Calls(np.dtype, ('f8', 1))),
    'retyped-dtype': array(Calls(RETYPE, np.dtype, np.dtype, ('O',), {'dtype': 'f8'})),
    'array-without-state': Calls(REBUILD, np.ndarray, (0,), b'b'),
    'array-in-short-state': Calls(REBUILD, np.ndarray, (0,), b'b', state=(1, 2)),
    'array-longer-than-its-bytes': array(DOUBLE, (2,)),
    'array-of-negative-side': array(DOUBLE, (-1,)),
    'array-of-a-count-of-bytes': array(DOUBLE, (1,), 1 << 40),
    'scalar-of-objects': Calls(SCALAR, Namespace(dtype='O'), POINTER),
    'scalar-without-bytes': Calls(SCALAR, DOUBLE, b''),
    'history-of-lists': history([1.0], [1]),
    'history-of-two-lengths': history(np.ones(2), np.ones(1)),
    'history-of-text': history(np.array(['a']), np.ones(1)),
    'history-of-no-length': history(np.ones(1), np.ones(1), np.ones(1)),
    'history-without-state': Calls(HistoryBuffer, [1.0], [1]),
    'namespace-of-a-list': Calls(Namespace, state=[('lr', 1)]),
    'namespace-of-slots': Calls(Namespace, state=({}, {'__class__': HistoryBuffer})),
    'namespace-of-arguments': Calls(Namespace, 1),
    'namespace-of-numbers': Calls(Namespace, state={1: 2}),
    'config-of-pairs': Calls(ConfigDict, [('lr', 1)]),
    'config-with-state': Calls(ConfigDict, {}, state={'lazy': True}),
    'bytes-of-a-length': Calls(bytes, 1 << 40),
    'bytearray-of-a-length': Calls(bytearray, 1 << 20),
    'encodings-of-encodings': Calls(encode, Calls(encode, b'a', 'hex'), 'hex'),
    'record': np.zeros(1, 'i4,f8'),
    'attribute-of-a-tensor': Calls(getattr, torch.Tensor, 'mean'),
    'attribute-of-a-history': Calls(getattr, HistoryBuffer, 'update'),
    'class': OrderedDict,
    'hooks-of-a-tensor': Calls(
        torch._utils._rebuild_parameter, ONE, True, OrderedDict({0: OrderedDict})
    ),
    'methods-of-a-tensor': Calls(
        *(torch._utils._rebuild_parameter_with_state, ONE, True, OrderedDict()),
        {'detach': 1},
    ),
}


@pytest.mark.parametrize('value', HOSTILE.values(), ids=HOSTILE)
def test_forged_objects_are_refused(tmp_path, value):
    path = tmp_path / 'forged.pth'
    for zipped in (True, False):
        torch.save([value], path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match='forged.pth is (refused|not a readable)'):
            read_checkpoint(path)


def doubled(kind, depth):
    """Nest containers that each hold the next one twice."""
    value = kind()
    for _ in range(depth):
        value = kind((value, value))
    return value


def nested(depth):
    value = ()
    for _ in range(depth):
        value = (value,)
    return value


LISTS = doubled(list, 25)
COLLIDING = [i * (2**61 - 1) + 1 for i in range(5000)]  # all have the hash 1
PAIRS = [[number, 0] for number in range(5000)]
MADE = Calls(OrderedDict, PAIRS)
TEXT, TUPLE = 'text' * 50_000, tuple(range(10_000))
STATE = {f'{number}': 0 for number in range(5000)}
ONES = np.ones(9)
BOMBS = {
    'tuples': doubled(tuple, 25),
    'nested-tuples': nested(101),
    'quoted-arguments': Calls(np.dtype, LISTS),
    'colliding-keys': dict.fromkeys(COLLIDING),
    'colliding-items': Calls(set, COLLIDING),
    'colliding-pairs': Calls(OrderedDict, [[key, 0] for key in COLLIDING]),
    'colliding-tuples': dict.fromkeys((number, 1) for number in range(2000)),
    'colliding-results': {Calls(complex, number, 1): 0 for number in range(4000)},
    'copied-lists': [Calls(OrderedDict, PAIRS) for _ in range(2400)],
    'copied-tuples': [Calls(torch.Size, TUPLE) for _ in range(1200)],
    'copied-texts': [Calls(encode, TEXT, 'latin1') for _ in range(60)],
    'copied-results': [Calls(OrderedDict, MADE) for _ in range(2400)],
    'copied-states': [Calls(Namespace, state=STATE) for _ in range(2400)],
    'copied-histories': [history(ONES, ONES) for _ in range(2)],
    'fields-of-a-dtype': Calls(np.dtype, 'f8,' * 9),
    'size-of-a-tensor': Calls(torch.FloatTensor, 1 << 33),
    'size-by-retyping': Calls(RETYPE, bytearray, bytearray, (1 << 33,), {}),
}


@pytest.mark.parametrize('value', BOMBS.values(), ids=BOMBS)
def test_what_never_ends_is_refused_at_once(tmp_path, value):
    torch.save([value], tmp_path / 'bomb.pth')
    refused_at_once(tmp_path / 'bomb.pth')


@contextmanager
def at_once():
    """Fail after 3 s, in which no garbage of other tests is collected."""
    gc.disable()
    start = process_time()
    try:
        yield
    finally:
        gc.enable()
    assert process_time() - start < 3


def refused_at_once(path, reason=''):
    message = f'{path.name} is .*{reason}'
    with at_once(), pytest.raises(ValueError, match=message) as refused:
        read_checkpoint(path)
    assert len(str(refused.value)) < 800


def test_shared_lists_of_a_config_are_read_once(tmp_path):
    torch.save(Calls(ConfigDict, {'lists': LISTS}), tmp_path / 'config.pth')
    with at_once():
        assert len(read_checkpoint(tmp_path / 'config.pth').lists) == 2


FINE = pickle.dumps(dict(part=1), 2)
SHARED = pickle.dumps(doubled(tuple, 25), 2)
NAMELESS = pickle.dumps(doubled(tuple, 18), 2)[:-1] + b')R.'
DEFLATED = dict(compression=zipfile.ZIP_DEFLATED)
IN_A_DICT = b'c__builtin__\nbytearray\n}\x8a\x05\0\0\0\0\1NsR.'
GROWN = b'ccollections\nCounter\nq\xff]q\xfe\x85R0h\xfeK\1a.'
RECORDS = {
    'other-case': ({'DATA.PKL': SHARED, 'data/0': b''}, {}, 'parts'),
    'two-cases': ({'data.pkl': FINE, 'Data.pkl': FINE}, {}, '2 records data.pkl'),
    'grown-list': ({'data.pkl': pickle.dumps(LISTS, 2)[:-1] + GROWN}, {}, 'changes'),
    'arguments-in-a-dict': ({'data.pkl': IN_A_DICT}, {}, 'without a tuple'),
    'no-function': ({'data.pkl': NAMELESS}, {}, 'without a name'),
    'control-characters': ({'data.pkl': b'ctorch._utils\n\x1b[2J\n)R.'}, {}, 'x1b.2J'),
    'long-name': ({'data.pkl': b'c' + b'm' * 9999 + b'\nx\n.'}, {}, 'a global of'),
    'compressed': ({'data.pkl': FINE}, DEFLATED, 'is compressed'),
    'shared': ({'data.pkl': FINE, '0': bytes(999)}, dict(copies=9), 'records claim'),
}


@pytest.mark.parametrize(
    ('records', 'options', 'reason'), RECORDS.values(), ids=RECORDS
)
def test_records_that_are_more_than_the_file_are_refused(
    tmp_path, records, options, reason
):
    write_zip(tmp_path / 'fine.pth', {'data.pkl': FINE, 'version': b'3\n'})
    assert read_checkpoint(tmp_path / 'fine.pth') == dict(part=1)
    write_zip(tmp_path / 'bomb.pth', {**records, 'version': b'3\n'}, **options)
    refused_at_once(tmp_path / 'bomb.pth', reason)


def write_zip(path, records, compression=zipfile.ZIP_STORED, copies=0):
    with zipfile.ZipFile(path, 'w', compression) as archive:
        for name, content in records.items():
            archive.writestr(f'archive/{name}', content)
        archive.filelist += [copy.copy(archive.filelist[1]) for _ in range(copies)]


def test_two_directories_are_refused(tmp_path):
    """Python reads the one before the end record, PyTorch the one that it names."""
    files = []
    for content in (SHARED, FINE.ljust(len(SHARED))):
        write_zip(tmp_path / 'bomb.pth', {'data.pkl': content, 'version': b'3\n'})
        with zipfile.ZipFile(tmp_path / 'bomb.pth') as archive:
            files.append((tmp_path / 'bomb.pth').read_bytes())
            start = archive.start_dir
    joined = bytearray(files[0][:-22] + files[1])
    joined[-6:-2] = start.to_bytes(4, 'little')
    (tmp_path / 'bomb.pth').write_bytes(joined)
    with zipfile.ZipFile(tmp_path / 'bomb.pth') as archive:
        assert archive.read('archive/data.pkl').startswith(FINE)
    refused_at_once(tmp_path / 'bomb.pth', 'directory is not where')


@pytest.mark.parametrize(
    'tensor',
    [
        torch.eye(2).to_sparse(),
        torch.eye(2, device='meta'),
        torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.qint8),
    ],
    ids=['sparse', 'meta', 'quantized'],
)
@pytest.mark.filterwarnings('ignore')
def test_other_tensors_than_dense_ones_are_refused(tmp_path, tensor):
    torch.save(dict(w=tensor), tmp_path / 'other.pth')
    with pytest.raises(ValueError, match='other.pth is not.*makes no dense tensor'):
        read_checkpoint(tmp_path / 'other.pth')


def with_versions(versions):
    weights = OrderedDict(w=torch.ones(1))
    weights._metadata = versions
    return weights


@pytest.mark.parametrize(
    ('weights', 'message'),
    [
        ({0: torch.ones(1)}, "names of weights must be texts .* got '0' of type int"),
        ({'w' * 501: torch.ones(1)}, "at most 500 characters, got 'www"),
        ({'v': 1, 'w': torch.ones(1)}, "'v' must be a dense tensor, got int"),
        ({'w': torch.eye(2).to_sparse()}, 'the layout torch.sparse_coo'),
        ({'w': torch.eye(2, device='meta')}, "'w' must be .*, got a meta one"),
        ({'w': torch.ones(1).expand(1 << 40)}, r'got 4 bytes for the shape \(1099511'),
        (with_versions({'': {'version': 'b'}}), "version of '' .* must be a number"),
        (with_versions({1: {'version': 2}}), "version of '1' .* must be a number"),
        (with_versions({'': 2}), "the version of ''"),
    ],
    ids=lambda value: value[:12] if type(value) is str else '',
)
def test_what_is_among_weights_is_named(weights, message):
    with pytest.raises(ValueError, match=f'^net.pth: .*{message}') as raised:
        find_weights(dict(state_dict=weights), 'net.pth')
    assert '\n' not in str(raised.value) and len(str(raised.value)) < 300


def test_an_error_of_the_system_names_the_file(tmp_path):
    write_zip(tmp_path / 'fine.pth', {'data.pkl': FINE})
    cut = (tmp_path / 'fine.pth').read_bytes()[:60]
    (tmp_path / 'cut.pth').write_bytes(cut)
    with pytest.raises(ValueError, match='cut.pth is not a readable .*Invalid arg'):
        read_checkpoint(tmp_path / 'cut.pth')
    with pytest.raises(FileNotFoundError, match='gone.pth'):
        read_checkpoint(tmp_path / 'gone.pth')


def test_lengths_beyond_the_end_are_not_believed(tmp_path):
    path = tmp_path / 'bomb.pth'
    path.write_bytes(b'\x80\x02X\x00\x00\x00\x10text')  # 256 MiB of text
    tracemalloc.start()
    refused_at_once(path, 'only 4 remain')
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_tensors_larger_than_their_file_are_refused(tmp_path):
    path = tmp_path / 'bomb.pth'
    torch.save(torch.ones(1 << 16), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-1000])
    refused_at_once(path, 'unexpected EOF')
    path.write_bytes(path.read_bytes()[:1000])
    refused_at_once(path, 'tensors claim more than its 1000 bytes')


def test_methods_of_a_state_dict_cannot_be_hidden(tmp_path):
    torch.save(Hiding(), tmp_path / 'hiding.pth')
    read = read_checkpoint(tmp_path / 'hiding.pth')
    assert [*read.items()] == [('w', 1)]
    assert vars(read) == {'_metadata': OrderedDict()}


def test_attributes_of_a_parameter_are_read(tmp_path):
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.shards = [np.int64(3)]
    torch.save(parameter, tmp_path / 'parameter.pth')
    read = read_checkpoint(tmp_path / 'parameter.pth')
    assert type(read) is torch.nn.Parameter
    assert read.shards == [3]
    assert type(read.shards[0]) is np.int64


HISTORY = dict(log=HistoryBuffer([1.0, 2.0], [1, 1]), lr=np.float64(0.1))


def test_threads_do_not_disturb_one_another(tmp_path):
    torch.save(HISTORY, tmp_path / 'valid.pth')

    def read(_):
        return read_checkpoint(tmp_path / 'valid.pth')['log'].data[0].tolist()

    with ThreadPoolExecutor(4) as pool:
        assert all(log == [1, 2] for log in pool.map(read, range(400)))


def test_globals_of_the_host_program_are_its_own(tmp_path):
    """They do not apply to our reads, after which they are as before."""
    allowed = [(getattr, 'builtins.getattr'), (np.dtype, 'numpy.dtype'), capwords]
    path = tmp_path / 'saved.pth'
    named = Calls(getattr, OrderedDict, 'fromkeys')
    for value in (HISTORY, named, Calls(capwords, 'a')):
        torch.save(value, path)
        with torch.serialization.safe_globals(allowed):
            before = torch.serialization.get_safe_globals()
            if value is HISTORY:
                assert read_checkpoint(path)['log'].mean() == 1.5
            else:
                with pytest.raises(UntrustedCheckpointError):
                    read_checkpoint(path)
            assert {*torch.serialization.get_safe_globals()} == {*before}


def test_a_tar_archive_is_refused(tmp_path):
    """PyTorch unpacks the oldest format, with which a file may write others."""
    with tarfile.open(tmp_path / 'old.pth', 'w') as archive:
        (tmp_path / 'storages').write_bytes(b'')
        archive.add(tmp_path / 'storages', 'storages')
    with pytest.raises(ValueError, match='old.pth is not a readable'):
        read_checkpoint(tmp_path / 'old.pth')
