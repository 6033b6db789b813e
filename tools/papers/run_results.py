"""Compare a finished run with the row of its paper."""

from pathlib import Path

from mmattn.analysis.training_logs import last_log

from .tables import papers, printed_results

# The metric of a run's log behind a figure of a paper, and the factor between them.
LOGGED = {
    'Top 1 Accuracy': ('accuracy/top1', 1),
    'Top 5 Accuracy': ('accuracy/top5', 1),
    'box AP': ('coco/bbox_mAP', 100),
    'box AP50': ('coco/bbox_mAP_50', 100),
    'box AP75': ('coco/bbox_mAP_75', 100),
    'mask AP': ('coco/segm_mAP', 100),
    'mask AP50': ('coco/segm_mAP_50', 100),
    'mask AP75': ('coco/segm_mAP_75', 100),
    'mIoU': ('mIoU', 1),
}
MODEL_FIGURES = 'Top 1 Accuracy', 'box AP', 'mask AP', 'mIoU', 'mIoU(ms)'


def run_name(work_dir: Path) -> str:
    """Return the name of the config of a run, without reading the config.

    It is the name of the one `*.py` that training writes, else of the folder.
    """
    configs = [path.stem for path in work_dir.glob('*.py')]
    return configs[0] if len(configs) == 1 else work_dir.resolve().name


def run_figures(work_dir: Path) -> dict[str, float]:
    """Return the last validation of a run, as papers name and scale its figures.

    Raises:
        FileNotFoundError: no run in the folder has been validated.
    """
    records, _ = last_log(work_dir)
    last = {key: value for record in records for key, value in record.items()}
    found = {
        figure: scale * last[metric]
        for figure, (metric, scale) in LOGGED.items()
        if metric in last
    }
    if not found:
        metrics = ', '.join(metric for metric, _ in LOGGED.values())
        raise FileNotFoundError(
            f'{work_dir} has no log with a validation: expected '
            f'*/vis_data/scalars.json with one of {metrics}'
        )
    return found


def paper_figures(name: str) -> dict[str, dict[str, str]]:
    """Return what papers print of the configs of a name, by source and figure.

    A source is `<folder>/<name>, <paper>, <table>`. Configs of several methods may have
    one name; then each has its sources.
    """
    found = {}
    for paper in papers():
        results = printed_results(paper)
        for folder, collections in paper['configs'].items():
            config = f'{folder}/{name}'
            for collection in collections:
                facts = collection['models'].get(name, {})
                table = facts.get('source', collection.get('source'))
                printed = {f: str(facts[f]) for f in MODEL_FIGURES if f in facts}
                tables = ({table: printed} if printed else {}) | (
                    results.get(config, {}) if facts else {}
                )
                for source, figures in tables.items():
                    found[f'{config}, {paper["cited_as"]}, {source}'] = figures
    return found
