"""The tool that counts the networks of a paper's tables."""

import json

import pytest

from tools.papers import compare as compare_papers

WIDE = ['pvt', 'Table 9']  # one network, whose parameters alone are printed
ROW = next(row for row in compare_papers.paper_rows() if row['name'] == 'pvt_s_wide')


def test_counts_stand_beside_the_papers(capsys):
    assert compare_papers.main(WIDE) == 0
    out = capsys.readouterr().out
    assert 'arXiv:2102.12122, Table 9' in out
    lines = [line.split() for line in out.splitlines()]
    (cells,) = (line for line in lines if line[:2] == ['pvt_s_wide', 'params'])
    assert cells[2:] == ['46.8', '46.8218', '+0.0', 'yes']
    assert ROW['note'] in out


@pytest.mark.parametrize(
    'recorded, status', [(46.821764, 0), (46.821763, 1), (46.822, 1)]
)
def test_a_count_that_moved_is_an_error(monkeypatch, capsys, recorded, status):
    row = dict(ROW, params=dict(ROW['params'], ours=recorded))
    monkeypatch.setattr(compare_papers, 'paper_rows', lambda: [row])
    assert compare_papers.main(WIDE) == status
    moved = 'pvt_s_wide: params 46.821764' in capsys.readouterr().err
    assert moved == bool(status)


def test_rows_without_counts_have_their_reason(capsys):
    assert compare_papers.main(['dat_plus_plus', 'ADE20K']) == 0
    out = capsys.readouterr().out
    assert 'left out' in out
    assert 'the paper was not at hand' in out


@pytest.mark.parametrize(
    'args, match',
    [
        ([], 'expected a paper or --run WORK_DIR'),
        (['ivit', '--run', '.'], 'not both'),
        (['ivit', 'Table 99'], "no 'Table 99' in ivit.yml; it has ['Table 5', "),
        (['vit'], "invalid choice: 'vit'"),
    ],
)
def test_errors(capsys, args, match):
    with pytest.raises(SystemExit, match='2'):
        compare_papers.main(args)
    assert match in capsys.readouterr().err


@pytest.mark.parametrize(
    'config, record, expected',
    [
        ('ivit_t_3x_coco', {'coco/bbox_mAP_50': 0.709}, 'box AP50 70.9 70.9 +0.0 box'),
        ('ivit_t_3x_coco', {'coco/bbox_mAP': 0.452}, 'box AP 48.7 45.2 -3.5 box'),
        ('lisanet_b_300e_in1k', {'accuracy/top1': 84.5}, 'Accuracy 84.6 84.5 -0.1'),
        ('lisanet_b_300e_in1k', {'accuracy/top1': 84.5}, 'Accuracy 84.4 84.5 +0.1'),
        ('lisanet_b_300e_in1k', {'accuracy/top1': 84.5}, 'images/s 347.2 - Top'),
        ('vit_t16_interaction_300e_in1k', {'accuracy/top1': 1.0}, 'no paper prints'),
        ('own', {'mIoU': 40.0}, "no paper prints figures of 'own'"),
    ],
)
def test_a_run_stands_beside_its_row(config, record, expected, tmp_path, capsys):
    """Two tables may differ; the config is not executed; the last validation counts."""
    log = tmp_path / '20260101_000000/vis_data/scalars.json'
    log.parent.mkdir(parents=True)
    (tmp_path / f'{config}.py').write_text('raise RuntimeError')
    first = json.dumps(dict.fromkeys(record, 0.0))
    log.write_text(f'{first}\n{json.dumps(record)}\n')
    assert compare_papers.main(['--run', str(tmp_path)]) == 0
    assert expected in ' '.join(capsys.readouterr().out.split())


def test_a_run_without_a_validation_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match='no log with a validation'):
        compare_papers.main(['--run', str(tmp_path)])
