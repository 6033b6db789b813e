"""Pictures and tables of the benchmarks: what they show is what the csv says."""

import csv
from pathlib import Path

import pytest
import torch
from PIL import Image

from tools.benchmark import operators, plot
from tools.dev.readme_tables import speed_table

ABOUT = dict(machine='M', threads=2, dtype='float32', batch=1, torch='2', date='today')
ABOUT |= dict(commit='abc', size=224)
OUR_METHODS = ('landmark_', 'masked_', 'ms_deform_attn', 'neighborhood_')
OUR_METHODS += ('structure_aware_', 'deformable_', 'lisa')


def write(path: Path, rows: list[dict], **about) -> list[dict]:
    rows = [row | ABOUT | about for row in rows]
    with path.open('w', newline='') as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return plot.read(path)


def operator_rows(methods: list[str]) -> list[dict]:
    return [
        dict(method=m, tokens=n, ms=i * n, peak_mib=i + n) | {'pass': which}
        for i, m in enumerate(methods, start=1)
        for n in (49, 3136)
        for which in operators.PASSES
    ]


def texts(axis) -> list[str]:
    return [text.get_text() for text in axis.texts]


@pytest.mark.parametrize(
    'operator', ['lisa_block', 'masked_attention', 'ms_deform_attn']
)
def test_ours_are_solid_and_peers_dashed(operator):
    cases = operators.load(operator).cases(5, 1, 'cpu', torch.float32)
    methods = [case.method for case in cases]
    styles = plot.styles_of(methods, operator)
    for method in methods:
        assert (styles[method]['linestyle'] == '-') == method.startswith(OUR_METHODS)
    looks = {(style['color'], style['marker']) for style in styles.values()}
    assert len(looks) == len(methods)
    # The upper line of two that coincide leaves an edge of the lower one.
    widths = [style['linewidth'] for style in styles.values()]
    assert widths == sorted(set(widths), reverse=True)


def test_lines_show_time_and_memory(tmp_path):
    methods = ['deformable_attention (cpp)', 'scaled_dot_product_attention']
    about = dict(operator='deformable_attention', isa='AVX2')
    rows = write(tmp_path / 'a.csv', operator_rows(methods), **about)
    figure = plot.draw_scaling(rows)
    assert len(figure.axes) == 4
    for i, axis in enumerate(figure.axes):
        for line in axis.lines:
            expected = [
                float(row[('ms', 'peak_mib')[i // 2]])
                for row in rows
                if row['method'] == line.get_label()
                and row['pass'] == operators.PASSES[i % 2]
            ]
            assert list(line.get_ydata()) == expected and len(expected) == 2
    labels = [axis.get_ylabel() for axis in figure.axes[::2]]
    assert labels == ['time (ms)', 'peak memory (MiB)']
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [*methods, 'solid: mmattn', 'dashed: peers']
    lines = plot.caption(rows).splitlines()
    assert lines[0].startswith('M, AVX2, 2 threads, float32')
    assert 'adds no position bias' in lines[1]
    plot.plt.close(figure)


def test_ratios_are_those_of_the_bars(tmp_path):
    rows = [
        dict(model='ivit_t', images_per_s=24.76, speedup=2.06, params_m=27),
        dict(model='swin', images_per_s=12.98, speedup=1, params_m=28),
    ]
    rows = [row | {'pass': which} for which in 'ab' for row in rows]
    figure = plot.draw_throughput(write(tmp_path / 'm.csv', rows, baseline='swin'))
    for axis in figure.axes:
        assert texts(axis) == ['24.8  (1.91x)', '13  (1.00x)']
    owners = [text.get_text() for text in figure.legends[0].get_texts()]
    assert owners == ['mmattn', 'peers']
    bars = figure.axes[0].patches
    assert [plot.matplotlib.colors.to_hex(bar.get_facecolor()) for bar in bars] == [
        plot.OURS,
        plot.PEERS,
    ]
    plot.plt.close(figure)
    rows = [rows[0] | dict(product_share='0.614'), rows[1] | dict(product_share='')]
    rows = write(tmp_path / 'm.csv', rows, baseline='swin', threads=1, clock='cpu')
    figure = plot.draw_throughput(rows)
    assert texts(figure.axes[0]) == ['24.8  (1.91x), 61% of peak', '13  (1.00x)']
    assert plot.caption(rows).startswith('M, 1 thread, CPU time, float32, batch 1')
    plot.plt.close(figure)


def test_a_step_is_labeled_with_the_length_of_its_bar(tmp_path):
    phases = ('data_ms', 'forward_ms', 'backward_ms', 'optimizer_ms')
    rows = [
        dict(zip(phases, (5, 2000, 6000, 1000.4), strict=True), config='ours'),
        dict(zip(phases, (5, 4000, 7000, 900), strict=True), config='theirs'),
    ]
    rows = [row | {'step_ms': 10000.0, 'speedup': 1.01} for row in rows]
    figure = plot.draw_phases(write(tmp_path / 's.csv', rows, baseline='theirs'))
    labels = texts(figure.axes[0])
    assert labels == ['9,005 ms  (1.32x)', '11,905 ms  (1.00x)']
    plot.plt.close(figure)


def test_a_picture_is_beside_its_csv(tmp_path):
    path = tmp_path / 'x_cpu.csv'
    write(path, operator_rows(['unfold']), operator='landmark_attention')
    assert plot.draw(path) == tmp_path / 'x_cpu.png'
    with Image.open(tmp_path / 'x_cpu.png') as picture:
        assert picture.mode == 'P'


def test_table_has_speeds_and_the_share_of_peak():
    row = dict(model='a', params_m='20.04', speedup='1.2', flops_g='4.1')
    row |= {'pass': 'inference', 'product_share': '0.614'}
    step = {'pass': 'training step', 'product_share': ''}
    rows = [row, row | dict(model='b', speedup='2')]
    rows += [each | step | dict(speedup='0.5') for each in rows]
    lines = speed_table(rows).splitlines()
    assert lines[0] == (
        '| model | parameters (M) | inference | training step | FLOPs (G) | of peak |'
    )
    assert lines[2:] == [
        '| `b` | 20.0 | 2.00 | 0.50 | 4.1 | 61% |',
        '| `a` | 20.0 | 1.20 | 0.50 | 4.1 | 61% |',
    ]
