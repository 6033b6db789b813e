"""Pictures: colors, lines and texts, drawn on images and in charts."""

from .charts import (
    draw_confusion,
    draw_precision_recall,
    label_log,
    save_panels,
    shown_at,
)
from .overlays import (
    draw_cross,
    draw_labels,
    draw_lines,
    draw_objects,
    import_supervision,
    open_picture,
)
from .style import BLACK, FIRST, WHITE, class_colors, styled

__all__ = [
    'BLACK',
    'FIRST',
    'WHITE',
    'class_colors',
    'draw_confusion',
    'draw_cross',
    'draw_labels',
    'draw_lines',
    'draw_objects',
    'draw_precision_recall',
    'import_supervision',
    'label_log',
    'open_picture',
    'save_panels',
    'shown_at',
    'styled',
]
