"""Our backbones in the stock configs of the mm packages, by name alone."""

import pytest
from mmengine.config import Config
from mmengine.registry import DefaultScope

import mmattn  # noqa: F401
from mmattn.analysis.flops import build
from mmattn.data.check import build_checked
from mmattn.engine.map_check import check_maps
from mmattn.errors import UserError

CHANNELS = '[64, 128, 320, 512]'
IVIT = "backbone=dict(_delete_=True, type='mmattn.IViT', arch='tiny')"
IVIT_LAST = (
    "backbone=dict(_delete_=True, type='mmattn.IViT', arch='tiny', out_indices=3), "
    'head=dict(in_channels=512)'
)
VIT_LAST = (
    "backbone=dict(_delete_=True, type='mmattn.ViT', arch='tiny', patch_size=8), "
    'head=dict(in_channels=192)'
)
FPN = f'{IVIT}, neck=dict(in_channels={CHANNELS})'
SEG_HEADS = (
    f'{IVIT}, pretrained=None, decode_head=dict(in_channels={CHANNELS}), '
    'auxiliary_head=dict(in_channels=320)'
)
MASK2FORMER = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py'
SEG_MASK2FORMER = 'mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py'
SEGFORMER = 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py'
UPERNET = 'mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512.py'
RTMDET = 'mmdet::rtmdet/rtmdet_s_8xb32-300e_coco.py'
MASK_RCNN = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
CONVNEXT = 'mmpretrain::convnext/convnext-tiny_32xb128_in1k.py'
TIMM = (
    "backbone=dict(_delete_=True, type='mmpretrain.TIMMBackbone', "
    "model_name='resnet18', features_only=True, out_indices=(1, 2, 3, 4))"
)
RESNET = 'mmpretrain::resnet/resnet50_8xb32_in1k.py'
SWIN = 'mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py'
THREE_MAPS = (
    "backbone=dict(_delete_=True, type='mmattn.IViT', arch='tiny', "
    'out_indices=(1, 2, 3)), neck=dict(in_channels=[128, 320, 512])'
)
OTHER_HEADS = SEG_HEADS.replace('320)', '512)')
WIDE = 'bbox_head=dict(in_channels=256)'
FITTING = {
    MASK_RCNN: FPN,
    'mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py': FPN,
    RETINANET: FPN,
    'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_ms-crop-3x_coco.py': FPN,
    UPERNET: SEG_HEADS,
    'mmseg::swin/'
    'swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py': SEG_HEADS,
    'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py': f'{FPN}, pretrained=None',
    RESNET: IVIT_LAST,
    SWIN: IVIT_LAST,
    'mmpretrain::resnet/resnet18_8xb32_in1k.py': VIT_LAST,
    MASK2FORMER: f'{IVIT}, panoptic_head=dict(in_channels={CHANNELS})',
    SEG_MASK2FORMER: f'{IVIT}, decode_head=dict(in_channels={CHANNELS})',
    SEGFORMER: f'{IVIT}, decode_head=dict(in_channels={CHANNELS})',
    RTMDET: THREE_MAPS,
}
# By the config and its right model: a mistake, and what the error says about it.
MISFITS = [
    (MASK2FORMER, IVIT, r'panoptic_head.in_channels is \[256.*in_channels to these'),
    (SEG_MASK2FORMER, IVIT, r'decode_head.in_channels is \[256.*to these'),
    (SEGFORMER, IVIT, r'decode_head.in_channels is \[32, 64.* 4 maps of \[64, 128'),
    (
        SEGFORMER,
        FITTING[SEGFORMER].replace("'tiny'", "'tiny', out_indices=(1, 2, 3)"),
        r'decode_head.in_index is \[0, 1, 2, 3\], but .* returns 3 maps',
    ),
    (UPERNET, OTHER_HEADS, 'auxiliary_head.in_channels is 512, .* to 320'),
    (RESNET, IVIT_LAST.replace('=512', '=2048'), 'head.in_channels is 2048.* to 512'),
    (RTMDET, IVIT, r'neck.in_channels is \[128, 256, 512\], .* returns 4 maps'),
    (
        RTMDET,
        FPN,
        r'bbox_head.prior_generator is for 3 maps of strides \[8, 16, 32\], but '
        r'model.neck \(CSPNeXtPAFPN\) returns 4',
    ),
    (RTMDET, f'{THREE_MAPS}, {WIDE}', 'bbox_head.in_channels is 256, .*neck .* to 128'),
    # Backbones of others, the shape of maps, and strides are seen in a forward.
    (
        MASK_RCNN,
        'backbone=dict(depth=18), neck=dict(in_channels=[32, 64, 160, 256])',
        r'neck.in_channels is \[32, .*ResNet\) returns 4 maps of \[64, 128, 256, 512\]',
    ),
    (
        MASK_RCNN,
        f'{TIMM}, neck=dict(in_channels=[32, 64, 160, 256])',
        r'neck.in_channels is .*TIMMBackbone\) returns 4 maps of \[64, 128, 256, 512\]',
    ),
    (
        CONVNEXT,
        IVIT_LAST,
        r"head \(LinearClsHead\) reads vectors, .*neck=dict\(type='GlobalAveragePool",
    ),
    (
        'mmattn::classification/ivit_t_300e_in1k.py',
        "backbone=dict(arch='nano'), neck=dict(in_channels=256), "
        'head=dict(in_channels=256)',
        r'head.in_channels is 256, but model.neck \(PooledMLP\) .* to 1024',
    ),
    (RETINANET, THREE_MAPS, r'bbox_head.prior_generator .*128\], .*\[16, .*, 256\]'),
    (MASK_RCNN, THREE_MAPS, r'rpn_head.prior_generator|roi_head.bbox_roi_extractor'),
    # Keys of the replaced backbone
    (MASK_RCNN, IVIT.replace('_delete_=True, ', ''), r'backbone .*depth, .*_delete_'),
    (
        SWIN,
        IVIT_LAST.replace('_delete_=True, ', ''),
        r'backbone \(mmattn.IViT\) does not accept img_size: .*_delete_=True',
    ),
    (UPERNET, IVIT, r"pretrained is 'open-mmlab://resnet50_v1c', .*pretrained=None"),
]


@pytest.fixture
def user_config(tmp_path):
    """Loads a user's config file of the given text."""

    def load(base: str, model: str, more: str = '') -> Config:
        path = tmp_path / 'user.py'
        path.write_text(f"_base_ = '{base}'\nmodel = dict({model})\n{more}\n")
        return Config.fromfile(path)

    return load


@pytest.mark.parametrize('base', FITTING)
def test_stock_config_builds_and_runs_with_our_backbone(user_config, base):
    cfg = user_config(base, FITTING[base])
    assert 'mmattn' not in str(cfg.get('custom_imports'))
    model = build(cfg)
    check_maps(cfg.model, model)
    assert type(model.backbone).__module__.startswith('mmattn.models.backbones')


@pytest.mark.parametrize(('base', 'model', 'message'), MISFITS)
def test_maps_that_do_not_fit_are_named(user_config, base, model, message):
    cfg = user_config(base, model)
    with (
        DefaultScope.overwrite_default_scope(cfg.default_scope),
        pytest.raises(UserError, match=f'^model.{message}'),
    ):
        build_checked(cfg)


def test_our_config_is_a_base_by_prefix(user_config):
    more = "custom_imports = dict(imports=['mmattn'])"
    cfg = user_config(
        'mmattn::mask_rcnn/ivit_t_3x_coco.py', 'backbone=dict(drop_path_rate=0.1)', more
    )
    assert cfg.model.backbone.arch == 'tiny'
    assert cfg.model.backbone.drop_path_rate == 0.1
    build(cfg)
