"""Top-k accuracy of videos."""

from collections.abc import Sequence

from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

from mmattn.errors import UserError


@METRICS.register_module()
class TopKAccuracy(BaseMetric):
    """Percentage of videos whose class is among the k with the highest scores.

    Args:
        topk: values of k, each at most the number of classes.
        collect_device, prefix: as in mmengine.
    """

    default_prefix = 'acc'

    def __init__(
        self,
        topk: Sequence[int] = (1, 5),
        collect_device: str = 'cpu',
        prefix: str | None = None,
    ):
        super().__init__(collect_device, prefix)
        if not topk or min(topk) < 1:
            raise UserError(f'`topk` must hold numbers from 1 on, got {tuple(topk)}')
        self.topk = tuple(topk)

    def process(self, data_batch, data_samples: Sequence[dict]) -> None:
        """Store the rank of each video's class; equal scores count against it.

        Args:
            data_batch: ignored.
            data_samples: predictions of a `VideoClassifier`.

        Raises:
            ValueError: there are fewer classes than the largest k.
        """
        for sample in data_samples:
            scores = sample['scores']
            if max(self.topk) > len(scores):
                raise UserError(
                    f'`topk` must be at most {len(scores)}, the number of classes, got '
                    f'{self.topk}'
                )
            own = scores[int(sample['label'])]
            self.results.append(int((scores >= own).sum()))

    def compute_metrics(self, results: list[int]) -> dict[str, float]:
        return {
            f'top{k}': 100 * sum(rank <= k for rank in results) / len(results)
            for k in self.topk
        }
