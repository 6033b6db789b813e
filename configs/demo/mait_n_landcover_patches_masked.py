# Written by tools/analysis/mask_search.py.
# Step 3: of layers with all heads masked, those that became local.
_base_ = 'mait_n_landcover_patches.py'
model = dict(
    backbone=dict(
        masking=[
            [0, 3],
            [0],
            [0, 1, 2, 3],
            [0, 1, 2, 3],
            [0, 1, 2, 3],
            [0, 1, 3],
            [0, 1, 2, 3],
            [0, 1, 2, 3],
        ],
    ),
)
# The facts behind the decision, which a training does not read.
mask_search = dict(
    base='mait_n_landcover_patches.py',
    step='calibrate',
    low=0.116,
    split='train',
    num_images=256,
    uniform=0.116,
    locality=[
        [0.339, 0.108, 0.095, 0.117],
        [0.056, 0.126, 0.11, 0.119],
        [0.224, 0.146, 0.195, 0.225],
        [0.426, 0.174, 0.293, 0.378],
        [0.19, 0.206, 0.407, 0.23],
        [0.311, 0.614, 0.1, 0.4],
        [0.151, 0.151, 0.229, 0.301],
        [0.193, 0.255, 0.218, 0.252],
    ],
)
