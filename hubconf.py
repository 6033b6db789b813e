"""Entry points of `torch.hub`: one for each preset of `mmattn.list_models()`.

    torch.hub.load('<owner>/mmattn', 'ivit_tiny')
    torch.hub.load('path/to/a/clone', 'ivit_tiny', source='local', num_classes=10)

Models take the arguments of `mmattn.create_model`.
"""

from functools import partial as _partial
from functools import update_wrapper as _update_wrapper

import mmattn as _mmattn

dependencies = ['torch', 'timm']

for _name in _mmattn.list_models():
    globals()[_name] = _update_wrapper(
        _partial(_mmattn.create_model, _name), _mmattn.create_model
    )
