"""What papers and their authors' code say of the recipes that the configs follow.

By config: optimizer, learning rate, weight decay, batch, epochs or iterations, warm-up,
stochastic depth. A warm-up of None is not the paper's, or counted in iterations; 0 is
none. The sources are Tables 9 and 10 of arXiv 2402.17507, appendix A.2 of arXiv
2211.16289, section 5.1 and Table 8 of arXiv 2207.03006 with the recipes of DeiT and
Swin that it follows, and the configs of whai362/PVT, LeapLabTHU/DAT,
LeapLabTHU/DAT-Detection, LeapLabTHU/DAT-Segmentation and
fundamentalvision/Deformable-DETR; the iterations of PVT v2 on ADE20K are those of arXiv
2106.13797. What of DAT is not theirs, and the stochastic depth of backbones in
Deformable DETR, is as the READMEs say.
"""

LAMB = ('Lamb', 8e-3, 0.05, 4096, 300, 20)
ADAMW = ('AdamW', 1e-3, 0.05, 1024, 300, 5)
FINE_TUNING = ('AdamW', 5e-6, 1e-8, 1024, 30, 5)
DETECTION = ('AdamW', 1e-4, 0.05, 16, 36, None)
SEGMENTATION = ('AdamW', 8e-5, 0.05, 16, 160000, None)
LISA = ('AdamW', 1e-3, 0.05, 1024, 300, 20)
LISA_21K = ('AdamW', 4e-3, 0.05, 4096, 90, 5)
LISA_FROM_21K = ('AdamW', 5e-5, 1e-8, 512, 30, 0)
LISA_DETECTION = ('AdamW', 1e-4, 0.05, 16, 12, None)
LISA_SEGMENTATION = ('AdamW', 1e-4, 1e-4, 16, 80000, 0)
MAIT_T = ('AdamW', 1e-3 * 1024 / 512, 0.05, 1024, 400, 5)
MAIT_S = ('AdamW', 5e-4 * 1024 / 512, 0.05, 1024, 400, 5)
HMAIT = ('AdamW', 5e-4, 0.05, 512, 300, 20)
SWIN_1X = ('AdamW', 1e-4, 0.05, 16, 12, None)
SWIN_3X = ('AdamW', 1e-4, 0.05, 16, 36, None)
SWIN_SEGMENTATION = ('AdamW', 6e-5, 0.01, 16, 160000, None)
SWIN = ('AdamW', 1e-3, 0.05, 1024, 300, 20)
PVT_RETINANET = ('AdamW', 1e-4, 1e-4, 16, 12, None)
PVT_RETINANET_LARGE = ('AdamW', 1e-4 / 1.4, 1e-4, 8, 12, None)
PVT_MASK_RCNN = ('AdamW', 2e-4, 1e-4, 16, 12, None)
PVT_MASK_RCNN_LARGE = ('AdamW', 2e-4 / 1.4, 1e-4, 8, 12, None)
PVT_SPARSE_RCNN = ('AdamW', 2.5e-5 / 1.4, 1e-4, 8, 36, None)
PVT_SEGMENTATION = ('AdamW', 1e-4, 1e-4, 16, 80000, None)
PVT_V2_SEGMENTATION = ('AdamW', 1e-4, 1e-4, 16, 40000, None)
DATPP_RETINANET_1X = ('AdamW', 2e-4, 0.05, 64, 12, None)
DATPP_RETINANET_3X = ('AdamW', 2e-4, 0.05, 64, 36, None)
DATPP_1X = ('AdamW', 4e-4, 0.05, 64, 12, None)
DATPP_3X = ('AdamW', 4e-4, 0.05, 64, 36, None)
DEFORMABLE_DETR = ('AdamW', 2e-4, 1e-4, 32, 50, None)
PVT_V2 = ('b0', 'b1', 'b2', 'b2_li', 'b3', 'b4', 'b5')
DAT_DROP_PATH = dict(t=0.2, s=0.3, b=0.5)
PAPER = {
    'classification/ivit_t_300e_in1k': (*LAMB, 0.15),
    'classification/ivit_s_300e_in1k': (*LAMB, 0.3),
    'classification/ivit_b_300e_in1k': (*LAMB, 0.4),
    'classification/vit_t16_mhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_t16_imhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_s16_mhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_s16_imhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_t8_mhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_t8_imhsa_300e_in1k': (*ADAMW, 0.1),
    **{
        f'classification/vit_{size}_{attention}_{side}_30e_in1k': (*FINE_TUNING, 0.1)
        for size in ('t16', 's16')
        for attention in ('mhsa', 'imhsa')
        for side in (448, 672, 896)
    },
    'mask_rcnn/ivit_t_3x_coco': (*DETECTION, 0.2),
    'mask_rcnn/ivit_s_3x_coco': (*DETECTION, 0.3),
    'mask_rcnn/ivit_b_3x_coco': (*DETECTION, 0.4),
    'upernet/ivit_t_160k_ade20k': (*SEGMENTATION, 0.4),
    'upernet/ivit_s_160k_ade20k': (*SEGMENTATION, 0.4),
    'upernet/ivit_b_160k_ade20k': (*SEGMENTATION, 0.4),
    'classification/lisanet_i_150e_in1k': ('AdamW', 1e-3, 0.05, 1024, 150, 20, 0.0),
    'classification/lisanet_i_384_30e_in1k': (*FINE_TUNING, 0.0),
    'classification/lisanet_s_300e_in1k': (*LISA, 0.1),
    'classification/lisanet_b_300e_in1k': (*LISA, 0.4),
    'classification/hylisanet_s_300e_in1k': (*LISA, 0.1),
    'classification/hylisanet_b_300e_in1k': (*LISA, 0.4),
    'classification/hylisanet_s_90e_in21k': (*LISA_21K, 0.1),
    'classification/hylisanet_b_90e_in21k': (*LISA_21K, 0.2),
    'classification/hylisanet_s_in21k_30e_in1k': (*LISA_FROM_21K, 0.1),
    'classification/hylisanet_b_in21k_30e_in1k': (*LISA_FROM_21K, 0.2),
    'mask_rcnn/lisanet_s_1x_coco': (*LISA_DETECTION, 0.1),
    'mask_rcnn/hylisanet_s_1x_coco': (*LISA_DETECTION, 0.1),
    'sem_fpn/lisanet_s_80k_ade20k': (*LISA_SEGMENTATION, 0.15),
    'sem_fpn/hylisanet_s_80k_ade20k': (*LISA_SEGMENTATION, 0.15),
    'classification/mait_xt_400e_in1k': (*MAIT_T, 0.0),
    'classification/mait_xt_distilled_400e_in1k': (*MAIT_T, 0.0),
    'classification/mait_t_400e_in1k': (*MAIT_T, 0.0),
    'classification/mait_t_36l_400e_in1k': (*MAIT_T, 0.0),
    'classification/mait_t_random_mask_400e_in1k': (*MAIT_T, 0.0),
    'classification/mait_xs_400e_in1k': (*MAIT_S, 0.1),
    'classification/mait_s_400e_in1k': (*MAIT_S, 0.1),
    **{
        f'classification/mait_{size}_{masking}_400e_in1k': recipe
        for size, recipe in {'t': (*MAIT_T, 0.0), 'xs': (*MAIT_S, 0.1)}.items()
        for masking in ('sch1', 'sch2', 'soft')
    },
    **{
        f'classification/mait_{size}_12l_{masking}_300e_in1k': (*ADAMW, 0.1)
        for size in 'ts'
        for masking in ('sch1', 'sch1_r5')
    },
    'classification/mait_t_12l_soft_400e_in1k': (*MAIT_T, 0.0),
    'classification/mait_s_12l_soft_400e_in1k': (*MAIT_S, 0.1),
    'classification/masked_cait_xxs24_400e_in1k': (*MAIT_S, 0.05),
    'classification/masked_cait_s24_400e_in1k': (*MAIT_S, 0.1),
    'classification/hmait_t_300e_in1k': (*HMAIT, 0.2),
    'classification/hmait_s_300e_in1k': (*HMAIT, 0.3),
    **{
        f'mask_rcnn/hmait_{size}_{schedule}_coco': (*recipe, 0.2)
        for size in 'ts'
        for schedule, recipe in {'1x': SWIN_1X, '3x': SWIN_3X}.items()
    },
    'upernet/hmait_t_160k_ade20k': (*SWIN_SEGMENTATION, 0.3),
    'upernet/hmait_s_160k_ade20k': (*SWIN_SEGMENTATION, 0.3),
    **{
        f'classification/pvt_{size}_300e_in1k': (*ADAMW, 0.1 if size in 'ts' else 0.3)
        for size in 'tsml'
    },
    **{
        f'classification/pvtv2_{size}_300e_in1k': (
            *ADAMW,
            0.3 if size in ('b3', 'b4', 'b5') else 0.1,
        )
        for size in PVT_V2
    },
    'classification/dat_t_300e_in1k': (*SWIN, 0.2),
    'classification/dat_s_300e_in1k': (*SWIN, 0.3),
    'classification/dat_b_300e_in1k': ('AdamW', 8e-4, 0.05, 1024, 300, 50, 0.5),
    'classification/dat_b_384_30e_in1k': ('AdamW', 2e-6, 1e-8, 512, 30, 0, 0.5),
    'classification/datpp_t_300e_in1k': (*SWIN, 0.2),
    'classification/datpp_s_300e_in1k': (*SWIN, 0.4),
    'classification/datpp_b_300e_in1k': (*SWIN, 0.7),
    'classification/datpp_b_384_30e_in1k': ('AdamW', 2e-5, 1e-8, 512, 30, 0, 0.6),
    **{
        f'retinanet/pvt_{size}_1x_coco': (*PVT_RETINANET, 0.1 if size in 'ts' else 0.0)
        for size in 'tsml'
    },
    **{
        f'mask_rcnn/pvt_{size}_1x_coco': (*PVT_MASK_RCNN, 0.1 if size in 'ts' else 0.0)
        for size in 'tsm'
    },
    'mask_rcnn/pvt_l_1x_coco': (*PVT_MASK_RCNN_LARGE, 0.0),
    **{
        f'{method}/pvt_{size}_3x_coco': (*DETECTION, 0.1 if size in 'ts' else 0.0)
        for method in ('retinanet', 'mask_rcnn')
        for size in 'tsml'
    },
    **{
        f'{method}/pvtv2_{size}_1x_coco': (*recipe, 0.1)
        for method, small, large in (
            ('retinanet', PVT_RETINANET, PVT_RETINANET_LARGE),
            ('mask_rcnn', PVT_MASK_RCNN, PVT_MASK_RCNN_LARGE),
        )
        for size in PVT_V2
        for recipe in (large if size in ('b4', 'b5') else small,)
    },
    'mask_rcnn/pvtv2_b2_3x_coco': (*DETECTION, 0.1),
    **{
        f'{method}/pvtv2_{size}_3x_coco': (*DETECTION, 0.1)
        for method in ('cascade_mask_rcnn', 'atss', 'gfl')
        for size in ('b2', 'b2_li')
    },
    'sparse_rcnn/pvtv2_b2_3x_coco': (*PVT_SPARSE_RCNN, 0.1),
    'sparse_rcnn/pvtv2_b2_li_3x_coco': (*PVT_SPARSE_RCNN, 0.1),
    **{f'sem_fpn/pvt_{size}_80k_ade20k': (*PVT_SEGMENTATION, 0.1) for size in 'tsml'},
    **{
        f'sem_fpn/pvtv2_{size}_40k_ade20k': (*PVT_V2_SEGMENTATION, 0.1)
        for size in PVT_V2
    },
    **{
        f'{method}/dat_{size}_{schedule}_coco': (*recipe, DAT_DROP_PATH[size])
        for method in ('retinanet', 'mask_rcnn')
        for size in 'ts'
        for schedule, recipe in {'1x': SWIN_1X, '3x': SWIN_3X}.items()
    },
    'cascade_mask_rcnn/dat_t_1x_coco': (*SWIN_1X, 0.2),
    **{
        f'cascade_mask_rcnn/dat_{size}_3x_coco': (*SWIN_3X, DAT_DROP_PATH[size])
        for size in 'tsb'
    },
    'retinanet/datpp_t_1x_coco': (*DATPP_RETINANET_1X, 0.0),
    'retinanet/datpp_s_1x_coco': (*DATPP_RETINANET_1X, 0.1),
    'retinanet/datpp_t_3x_coco': (*DATPP_RETINANET_3X, 0.2),
    'retinanet/datpp_s_3x_coco': (*DATPP_RETINANET_3X, 0.5),
    'mask_rcnn/datpp_t_1x_coco': (*DATPP_1X, 0.0),
    'mask_rcnn/datpp_s_1x_coco': (*DATPP_1X, 0.1),
    'mask_rcnn/datpp_t_3x_coco': (*DATPP_3X, 0.3),
    'mask_rcnn/datpp_s_3x_coco': (*DATPP_3X, 0.5),
    'cascade_mask_rcnn/datpp_t_1x_coco': (*DATPP_1X, 0.0),
    'cascade_mask_rcnn/datpp_t_3x_coco': (*DATPP_3X, 0.1),
    'cascade_mask_rcnn/datpp_s_3x_coco': (*DATPP_3X, 0.5),
    'cascade_mask_rcnn/datpp_b_3x_coco': (*DATPP_3X, 0.8),
    **{
        f'sem_fpn/dat_{size}_80k_ade20k': (*PVT_SEGMENTATION, DAT_DROP_PATH[size])
        for size in 'tsb'
    },
    'sem_fpn/datpp_t_80k_ade20k': (*PVT_SEGMENTATION, 0.4),
    'sem_fpn/datpp_s_80k_ade20k': (*PVT_SEGMENTATION, 0.4),
    'sem_fpn/datpp_b_80k_ade20k': (*PVT_SEGMENTATION, 0.7),
    **{
        f'upernet/dat_{size}_160k_ade20k': (*SWIN_SEGMENTATION, DAT_DROP_PATH[size])
        for size in 'tsb'
    },
    'upernet/datpp_t_160k_ade20k': (*SWIN_SEGMENTATION, 0.3),
    'upernet/datpp_s_160k_ade20k': (*SWIN_SEGMENTATION, 0.5),
    'upernet/datpp_b_160k_ade20k': (*SWIN_SEGMENTATION, 0.7),
    **{
        f'deformable_detr/{backbone}{variant}_50e_coco': (*DEFORMABLE_DETR, drop_path)
        for backbone, drop_path in dict(
            r50=None,
            ivit_t=0.2,
            hylisanet_s=0.1,
            hmait_t=0.2,
            pvtv2_b2=0.1,
            dat_t=0.2,
            datpp_t=0.2,
        ).items()
        for variant in ('', '_refine', '_two_stage')
    },
    'deformable_detr/r50_single_scale_50e_coco': (*DEFORMABLE_DETR, None),
    'deformable_detr/r50_single_scale_dc5_50e_coco': (*DEFORMABLE_DETR, None),
    'mask2former/pvtv2_b2_160k_ade20k': ('AdamW', 1e-4, 0.05, 16, 160000, None, 0.1),
}
# Of those that are not for 8.
GPUS = {
    name: 64 if '/datpp_b_' in name else batch // 2
    for name, (_, _, _, batch, *_) in PAPER.items()
    if batch == 64 or name.startswith('deformable_detr/')
}
