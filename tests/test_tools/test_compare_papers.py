"""The tool that counts the networks of a paper's tables."""

import pytest

from tools.analysis import compare_papers

pytest.importorskip('mmdet')
pytest.importorskip('mmpretrain')

WIDE = ['pvt', 'Table 9']  # one network, whose parameters alone are printed
ROW = next(row for row in compare_papers.paper_rows() if row['name'] == 'pvt_s_wide')


def test_counts_stand_beside_the_papers(capsys):
    assert compare_papers.main(WIDE) == 0
    out = capsys.readouterr().out
    assert 'arXiv:2102.12122, Table 9' in out
    lines = [line.split() for line in out.splitlines()]
    (cells,) = (line for line in lines if line[:2] == ['pvt_s_wide', 'params'])
    assert cells[2:] == ['46.8', '46.821764', '+0.0', 'yes']
    assert ROW['note'] in out


@pytest.mark.parametrize(
    'recorded, status', [(46.821764, 0), (46.8217634, 1), (46.8217646, 1), (46.822, 0)]
)
def test_a_count_that_moved_is_an_error(monkeypatch, capsys, recorded, status):
    row = dict(ROW, params=dict(ROW['params'], ours=recorded))
    monkeypatch.setattr(compare_papers, 'paper_rows', lambda: [row])
    assert compare_papers.main(WIDE) == status
    assert ('pvt_s_wide: params' in capsys.readouterr().err) == bool(status)


def test_rows_without_counts_have_their_reason(capsys):
    assert compare_papers.main(['dat_plus_plus', 'ADE20K']) == 0
    out = capsys.readouterr().out
    assert 'left out' in out
    assert 'the paper was not at hand' in out


@pytest.mark.parametrize(
    'args, match',
    [
        (['ivit', 'Table 99'], "no 'Table 99' in ivit.yml; it has ['Table 5', "),
        (['vit'], "invalid choice: 'vit'"),
    ],
)
def test_errors(capsys, args, match):
    with pytest.raises(SystemExit, match='2'):
        compare_papers.main(args)
    assert match in capsys.readouterr().err
