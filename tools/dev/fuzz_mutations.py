"""Mutate the content of files for `fuzz.py`: bytes, words, and what is inside."""

import io
import json
import random
import re
import zipfile

NUMBERS = (0, -1, 1, 255, 1 << 31, -(1 << 63), 1 << 64, 1e308, float('nan'), 0.5)
VALUES = (
    *NUMBERS,
    None,
    True,
    '',
    'x',
    'a\nb',
    '\x00',
    [],
    {},
    [[]],
    [None],
    {'id': 1},
)


def mutate_bytes(rng: random.Random, content: bytes) -> bytes:
    """Change bytes, or cut, repeat or insert some, one to eight times."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        start = rng.randrange(len(data) + 1)
        length = rng.choice((1, 2, 4, 8, 64))
        kind = rng.randrange(6)
        if kind == 0 and start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[start : start + length] = rng.randbytes(length)
        elif kind == 2:
            data[start : start + length] = rng.choice((b'\xff', b'\0')) * length
        elif kind == 3:
            del data[start : start + length]
        elif kind == 4:
            data[start:start] = data[start : start + length]
        elif rng.randrange(4) == 0:
            del data[start:]
    return bytes(data)


def mutate_value(rng: random.Random, value):
    """Replace, remove or repeat one part of what was read from JSON."""
    places = []

    def walk(node):
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(value)
    for _ in range(rng.choice((1, 1, 2))):
        node, key = rng.choice(places)
        kind = rng.randrange(4)
        if isinstance(node, dict) and kind == 0:
            node.pop(key, None)
        elif isinstance(node, list) and kind == 0:
            node.append(rng.choice(VALUES))
        elif isinstance(node, dict) or key < len(node):
            node[key] = rng.choice(VALUES)
    return value


def mutate_json(rng: random.Random, content: bytes) -> bytes:
    if rng.randrange(4) == 0:
        return mutate_bytes(rng, content)
    return json.dumps(mutate_value(rng, json.loads(content))).encode()


def mutate_zip(rng: random.Random, content: bytes) -> bytes:
    """Mutate the file, or one of its records with a checksum that is right."""
    if rng.randrange(4) == 0:
        return mutate_bytes(rng, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    program = next(name for name in records if name.endswith('data.pkl'))
    name = program if rng.randrange(4) else rng.choice([*records])
    records[name] = mutate_bytes(rng, records[name])
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w') as archive:
        for name, record in records.items():
            archive.writestr(zipfile.ZipInfo(name), record)  # without the time
    return file.getvalue()


def mutate_safetensors(rng: random.Random, content: bytes) -> bytes:
    if rng.randrange(3) == 0:
        return mutate_bytes(rng, content)
    end = 8 + int.from_bytes(content[:8], 'little')
    header = mutate_json(rng, content[8:end])
    return len(header).to_bytes(8, 'little') + header + content[end:]


def mutate_onnx(rng: random.Random, content: bytes) -> bytes:
    if rng.randrange(2):
        return mutate_bytes(rng, content)
    import onnx

    exported = onnx.load_model_from_string(content)
    (described,) = exported.metadata_props
    text = mutate_json(rng, described.value.encode())
    described.value = text.decode(errors='replace')
    return exported.SerializeToString()


def mutate_config(rng: random.Random, content: bytes) -> bytes:
    """Replace, remove, repeat or swap words of a text."""
    if rng.randrange(4) == 0:
        return mutate_bytes(rng, content)
    words = re.findall(r'\w+|\s+|.', content.decode())
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, other = rng.randrange(len(words)), rng.randrange(len(words))
        kind = rng.randrange(4)
        if kind == 0:
            words[at] = repr(rng.choice(VALUES))
        elif kind == 1:
            words[at] = ''
        elif kind == 2:
            words[at] *= 2
        else:
            words[at] = words[other]
    return ''.join(words).encode()
