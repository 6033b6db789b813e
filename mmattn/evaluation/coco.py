"""Average precision on COCO's annotations, fast, with the figures of each class."""

import contextlib
import io
import logging
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from mmdet.datasets.api_wrappers import COCO as MMDetCOCO
from mmdet.evaluation import CocoMetric as MMDetCocoMetric
from mmengine.fileio import get_local_path
from mmengine.logging import MMLogger, print_log
from pycocotools import mask as coco_masks

from mmattn.errors import UserError
from mmattn.registry import METRICS

from ..data.coco_json import index, numbered, read_coco
from ..models.limits import reached_limits
from ..results import SCORE
from ..results.matching import match
from ..results.tables import class_table

if find_spec('faster_coco_eval') is not None:
    from faster_coco_eval import COCO
    from faster_coco_eval import COCOeval_faster as COCOeval
else:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

ITEMS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
AREAS = ('all', 's', 'm', 'l')  # in the order of COCO's precision
SCORES = tuple(i / 20 for i in range(1, 20))
COCO_LIMIT = 100  # detections of an image in COCO's AP


@METRICS.register_module()
class CocoMetric(MMDetCocoMetric):
    """Evaluate as mmdet's CocoMetric, by faster-coco-eval where it is installed.

    The figures equal pycocotools', which evaluates otherwise. The results pass
    through no JSON file. `classwise` adds the AP of each class to the metrics, as
    `bbox_<class>_mAP`, and logs a table. Other arguments are mmdet's; with
    `proposal`, `proposal_fast`, `outfile_prefix` or `format_only` mmdet evaluates.

    AP counts as many detections of a class in an image as one has objects, at least
    COCO's 100: no image of COCO has more. `count_error` among the metrics is the mean
    difference between the detections of at least `score_thr` and the objects of an
    image, as a share of the mean number of objects. The log names the score at which it
    is lowest.

    Attributes:
        details: of the last evaluation, by 'bbox' and 'segm': `classes`, the unrounded
            figures of each class, NaN for one without objects; `recall` of shape (101,)
            and `precision` of shape (101, classes) at an IoU of 0.5, -1 for a class
            without objects.
        confusion: shape (classes + 1, classes + 1): objects by label and by prediction
            of at least `score_thr`. The last row counts detections that found no
            object, the last column objects that were not found.
        counts: shape (images, 2): the detections of at least `score_thr`, and the
            objects.
        limits: of the detector by their keys in its config. An evaluation that reaches
            one warns; `mmattn.Runner` sets them.

    Args:
        score_thr: lowest score of a detection that counts in `confusion` and `counts`.
        max_dets: detections of a class in an image that AP counts; None chooses.
        kwargs: arguments of mmdet's CocoMetric.
    """

    def __init__(
        self,
        ann_file: str | None = None,
        *args,
        score_thr: float = SCORE,
        max_dets: int | None = None,
        **kwargs,
    ):
        super().__init__(None, *args, **kwargs)
        if max_dets is not None and (type(max_dets) is not int or max_dets < 1):
            raise UserError(f'max_dets must be a positive number, got {max_dets!r}')
        self.score_thr, self.max_dets = score_thr, max_dets
        self.details, self.confusion, self.counts = {}, None, None
        self.limits = {}
        if ann_file is None:
            return
        with get_local_path(ann_file, backend_args=self.backend_args) as path:
            content, notes = read_coco(path, ann_file, masks='segm' in self.metrics)
        for note in notes:
            print_log(note, 'current', logging.WARNING)
        if kwargs.get('sort_categories'):
            content['categories'].sort(key=lambda category: category['id'])
        self._coco_api = index(content, MMDetCOCO())

    @property
    def class_rows(self) -> dict[str, dict[str, dict[str, float]]]:
        """The figures of each class, by 'bbox' and 'segm'."""
        return {kind: found['classes'] for kind, found in self.details.items()}

    def compute_metrics(self, results: list) -> dict[str, float]:
        if self.outfile_prefix or not {'bbox', 'segm'}.issuperset(self.metrics):
            return super().compute_metrics(results)
        if self._coco_api is None:  # mmdet builds it from the samples
            return super().compute_metrics(results)
        content, numbers = numbered(self._coco_api.dataset)
        truth = index(content, COCO())
        self.cat_ids = truth.getCatIds(catNms=self.dataset_meta['classes'])
        self.img_ids = truth.getImgIds()
        found = [
            result | dict(img_id=numbers[result['img_id']]) for _, result in results
        ]
        if not any(len(result['labels']) for result in found):
            MMLogger.get_current_instance().warning(
                'The data set has no detection, so its metrics are 0.'
            )
        self.counts = self._count(truth, found)
        most = self._most_of_a_class(truth)
        limit = self.max_dets or max(COCO_LIMIT, most)
        as_coco = self.max_dets is None and limit == COCO_LIMIT
        self._tell_of_limits(found, limit, most)
        names = [truth.loadCats(i)[0]['name'] for i in self.cat_ids]
        metrics = {}
        for kind in self.metrics:
            evaluation = self._evaluate(truth, found, kind, None if as_coco else limit)
            rows = _class_rows(evaluation.eval['precision'], self.iou_thrs)
            self.details[kind] = dict(
                classes=dict(zip(names, rows, strict=True)),
                recall=evaluation.params.recThrs,
                precision=evaluation.eval['precision'][0, :, :, 0, -1],
            )
            if self.classwise:
                MMLogger.get_current_instance().info(
                    f'{kind} AP of each class\n{class_table(self.class_rows[kind])}'
                )
                metrics |= {
                    f'{kind}_{name}_mAP': round(row['mAP'], 3)
                    for name, row in self.details[kind]['classes'].items()
                }
            figures = evaluation.stats[:6] if as_coco else _overall(rows)
            for item, value in zip(ITEMS, figures, strict=True):
                if self.metric_items is None or item in self.metric_items:
                    metrics[f'{kind}_{item}'] = float(f'{round(value, 3)}')
        if self.counts[:, 1].any():
            metrics['count_error'] = self._count_error(found)
        self.confusion = self._confuse(truth, found)
        return metrics

    def _objects(self, truth: COCO, image_id: int) -> list[dict]:
        """Return the objects of an image that count."""
        return [
            entry
            for entry in truth.imgToAnns.get(image_id, ())
            if entry['category_id'] in self.cat_ids and not entry.get('iscrowd')
        ]

    def _count(self, truth: COCO, found: Sequence[dict]) -> np.ndarray:
        pairs = [
            (
                int((result['scores'] >= self.score_thr).sum()),
                len(self._objects(truth, result['img_id'])),
            )
            for result in found
        ]
        return np.array(pairs, int).reshape(-1, 2)

    def _count_error(self, found: Sequence[dict]) -> float:
        """Return the error of counts, and tell of the score that counts best."""
        objects = self.counts[:, 1]

        def error_from(score: float) -> float:
            counts = [(result['scores'] >= score).sum() for result in found]
            return round(float(np.abs(counts - objects).sum() / objects.sum()), 3)

        error, *others = map(error_from, (self.score_thr, *SCORES))
        errors = dict(zip(SCORES, others, strict=True))
        best = min(errors, key=errors.get)
        if errors[best] < error:
            MMLogger.get_current_instance().info(
                f'count error {error} at a score of {self.score_thr}; the lowest is '
                f'{errors[best]} at {best}: mmattn predict --score {best}'
            )
        return error

    def _most_of_a_class(self, truth: COCO) -> int:
        """Return the largest number of objects of a class in an image."""
        classes = [
            Counter(entry['category_id'] for entry in self._objects(truth, image_id))
            for image_id in self.img_ids
        ]
        return max((n for each in classes for n in each.values()), default=0)

    def _tell_of_limits(self, found: Sequence[dict], limit: int, most: int):
        logger = MMLogger.get_current_instance()
        counts = [len(result['scores']) for result in found]
        for note in reached_limits(self.limits, counts, *self.counts.T):
            logger.warning(note)
        if limit < most:
            logger.warning(
                f'AP counts the best {limit} detections of a class in an image, and '
                f'one has {most} objects: val_evaluator.max_dets={most} counts all'
            )
        elif limit > COCO_LIMIT:
            logger.info(
                f'AP counts the best {limit} detections of a class in an image, of '
                f'which one has {most} objects; COCO counts {COCO_LIMIT} (max_dets)'
            )

    def _evaluate(
        self, truth: COCO, found: Sequence[dict], kind: str, limit: int | None = None
    ) -> COCOeval:
        """Return an evaluation; without a limit of detections it is as in mmdet."""
        annotations = self._annotations(found, kind)
        results = index(truth.dataset | dict(annotations=annotations), COCO())
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation = COCOeval(truth, results, kind)
        evaluation.params.catIds = self.cat_ids
        evaluation.params.imgIds = self.img_ids
        evaluation.params.maxDets = [1, 10, limit] if limit else [*self.proposal_nums]
        evaluation.params.iouThrs = np.asarray(self.iou_thrs)
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        return evaluation

    def _annotations(self, found: Sequence[dict], kind: str) -> list[dict]:
        annotations = []
        for result in found:
            boxes = result['bboxes'].astype(np.float64)
            boxes[:, 2:] -= boxes[:, :2]
            areas = (boxes[:, 2] * boxes[:, 3]).tolist()
            boxes, scores = boxes.tolist(), result['scores'].tolist()
            if kind == 'segm':  # with areas of masks, as mmdet counts them
                masks = result['masks']
                scores = result.get('mask_scores', result['scores']).tolist()
                # pycocotools 2.0.11 counts the masks of a list in 8 bits.
                areas = [float(coco_masks.area(mask)) for mask in masks]
            for i, label in enumerate(result['labels'].tolist()):
                entry = dict(
                    id=len(annotations) + 1,
                    image_id=result['img_id'],
                    category_id=self.cat_ids[label],
                    bbox=boxes[i],
                    area=areas[i],
                    score=scores[i],
                    iscrowd=0,
                )
                if kind == 'segm':
                    entry['segmentation'] = masks[i]
                annotations.append(entry)
        return annotations

    def _confuse(self, truth: COCO, found: Sequence[dict]) -> np.ndarray:
        """Count the pairs of `match`, and what finds none."""
        count = len(self.cat_ids)
        labels = {category: i for i, category in enumerate(self.cat_ids)}
        counts = np.zeros((count + 1, count + 1), np.int64)
        for result in found:
            objects = self._objects(truth, result['img_id'])
            boxes = np.array([entry['bbox'] for entry in objects]).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            given = [labels[entry['category_id']] for entry in objects]
            order = np.argsort(-result['scores'], kind='stable')
            order = order[result['scores'][order] >= self.score_thr]
            pairs = match(result['bboxes'][order], boxes)
            for i, label in enumerate(result['labels'][order]):
                counts[given[pairs[i]] if i in pairs else count, label] += 1
            for j in set(range(len(given))).difference(pairs.values()):
                counts[given[j], count] += 1
        return counts


def _overall(rows: Sequence[dict]) -> list[float]:
    """Return the means over the classes that have objects, -1 without any."""
    values = np.array([[row[item] for item in ITEMS] for row in rows])
    known = ~np.isnan(values)
    sums = np.where(known, values, 0).sum(0)
    return np.where(known.any(0), sums / known.sum(0).clip(1), -1).tolist()


def _class_rows(precision: np.ndarray, iou_thrs: Sequence[float]) -> list[dict]:
    """Return the figures of each class, from COCOeval's precision."""

    def mean(values: np.ndarray) -> float:
        values = values[values > -1]
        return float(values.mean()) if values.size else float('nan')

    rows = []
    for of_class in np.moveaxis(precision[..., -1], 2, 0):
        row = dict(mAP=mean(of_class[..., 0]))
        for name, iou in (('mAP_50', 0.5), ('mAP_75', 0.75)):
            row[name] = mean(of_class[np.isclose(iou_thrs, iou), :, 0])
        row |= {f'mAP_{AREAS[i]}': mean(of_class[..., i]) for i in (1, 2, 3)}
        rows.append(row)
    return rows
