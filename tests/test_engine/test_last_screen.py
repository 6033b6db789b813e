"""The end of a training: figures of each class, and the name of the best checkpoint."""

from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS
from tiny_run import make_runner

ROWS = {'cell': dict(mAP=0.51, mAP_50=0.8), 'nucleus': dict(mAP=float('nan'), mAP_50=1)}
TABLE = """\
bbox of each class, at the last validation
class      mAP  mAP_50
cell     0.510   0.800
nucleus    nan   1.000"""


class Counting(BaseMetric):
    """A metric with figures of each class."""

    class_rows = {}

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        self.class_rows = dict(bbox=ROWS)
        return {'score': 1}


def test_a_training_ends_with_its_classes_and_its_best_checkpoint(tmp_path):
    METRICS.module_dict['CountingMetric'] = Counting
    evaluator = [dict(type='RisingMetric'), dict(type='CountingMetric', prefix='all')]
    hook = dict(type='CheckpointHook', interval=2, by_epoch=False)
    hook |= dict(save_best='score', rule='greater')
    make_runner(
        tmp_path,
        val=True,
        val_interval=2,
        val_evaluator=evaluator,
        default_hooks=dict(checkpoint=hook),
    ).train()
    (log,) = tmp_path.glob('*/*.log')
    end = log.read_text().rpartition('Iter(val)')[2]
    assert TABLE in end
    assert f'best checkpoint: {tmp_path}/best_score_iter_4.pth\n' in end
    assert f'next: mmattn test {tmp_path} --per-class' in end
